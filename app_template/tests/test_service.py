"""What the service promises, tried on real Postgres. `app.idle()` waits until nothing is left to do; nothing sleeps."""

from __future__ import annotations

import pytest
from headrace import ConfigurationError

from my_service import carrier, service
from my_service.service import Order, app
from my_service.settings import Settings, from_environment

pytestmark = pytest.mark.anyio


class Carrier:
    """Stands in for the real one: notes what it is asked for, and is busy as often as it is told to be."""

    def __init__(self) -> None:
        self.booked: list[int] = []
        self.times_busy = 0

    async def book(self, order_id: int, items: list[str]) -> str:
        if self.times_busy:
            self.times_busy -= 1
            raise carrier.Busy
        self.booked.append(order_id)
        return "T1"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Carrier:
    fake = Carrier()
    monkeypatch.setattr(carrier, "book", fake.book)
    monkeypatch.setattr(service, "settings", Settings(retry_after="0s"))
    return fake


async def publish(*orders: Order, region: str = "us") -> None:
    await app.publish_many("orders", [(f"orders.{region}.{order.id}", order) for order in orders])


async def test_every_order_of_our_region_is_shipped_once(fake: Carrier) -> None:
    async with app.running():
        await publish(Order(1, ["a hat"]), Order(2, ["a coat"]))
        await publish(Order(3, ["a scarf"]), region="eu")
        await app.idle()
    assert sorted(fake.booked) == [1, 2]


async def test_an_order_waits_for_a_busy_carrier(fake: Carrier) -> None:
    fake.times_busy = 2
    async with app.running():
        await publish(Order(4, ["a glove"]))
        await app.idle()
    assert fake.booked == [4]


async def test_an_order_without_items_holds_up_nobody(fake: Carrier) -> None:
    async with app.running():
        await publish(Order(5, []), Order(6, ["a sock"]))
        await app.idle()
    assert fake.booked == [6]


def test_settings_come_from_the_environment() -> None:
    assert from_environment({"MY_SERVICE_MOST_AT_ONCE": "8", "PATH": "/bin"}) == Settings(most_at_once=8)


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="MY_SERVICE_REGION"):
        from_environment({"MY_SERVICE_REGOIN": "eu"})
