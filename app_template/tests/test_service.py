"""Tests of the service's guarantees on real Postgres. The tests control its clock, so nothing sleeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from headrace import ConfigurationError
from headrace.testing import Harness

from my_service import carrier
from my_service.service import Order, Parcel, app, enter, settings, ship
from my_service.settings import Settings, from_environment

pytestmark = pytest.mark.anyio


class Carrier:
    """A fake carrier. It records its calls, and is busy as often as the test sets."""

    def __init__(self) -> None:
        self.booked: list[int] = []
        self.times_busy = 0

    async def book(self, order_id: int, items: list[str]) -> str:
        if self.times_busy:
            self.times_busy -= 1
            raise carrier.Busy
        self.booked.append(order_id)
        return f"T{order_id}"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Carrier:
    fake = Carrier()
    monkeypatch.setattr(carrier, "book", fake.book)
    return fake


@pytest.fixture
async def service(harness: Callable[..., Harness], fake: Carrier) -> AsyncIterator[Harness]:
    """The running service in a database of its own."""
    async with harness(app) as service:
        yield service


async def publish(service: Harness, *orders: Order, region: str = settings.region) -> None:
    await service.publish_many("orders", [(f"orders.{region}.{order.id}", order) for order in orders])


async def deliveries(service: Harness) -> list[int]:
    rows = await service.app.database.fetch("select order_id from deliveries order by order_id")
    return [row["order_id"] for row in rows]


async def test_every_order_of_our_region_is_shipped_and_entered_once(service: Harness, fake: Carrier) -> None:
    await publish(service, Order(1, ["a hat"]), Order(2, ["a coat"]))
    await publish(service, Order(3, ["a scarf"]), region="elsewhere")
    await service.drain(raise_errors=True)
    assert sorted(fake.booked) == [1, 2]
    assert [m.data for m in await service.published("parcels", "*.*.1", type=Parcel)] == [Parcel(1, "T1")]
    assert await deliveries(service) == [1, 2]
    service.assert_all_acked()


async def test_an_order_waits_for_a_busy_carrier(service: Harness, fake: Carrier) -> None:
    fake.times_busy = 1
    await publish(service, Order(4, ["a glove"]))
    await service.drain()
    service.assert_outcomes(ship, "retried")
    await service.advance(settings.retry_after)
    await service.drain()
    service.assert_outcomes(ship, "retried", "acked")
    assert fake.booked == [4]


async def test_an_order_without_items_is_a_dead_letter_and_holds_up_nobody(service: Harness, fake: Carrier) -> None:
    await publish(service, Order(5, []), Order(6, ["a sock"]))
    await service.drain()
    (dead,) = await service.dead_letters(ship)
    assert (dead.data["id"], dead.error) == (5, "order 5 has no items, and no further attempt will find any")
    assert fake.booked == [6]


async def test_after_a_crash_a_parcel_is_booked_again_under_the_same_name(service: Harness, fake: Carrier) -> None:
    service.crash_before_ack(ship)
    await publish(service, Order(7, ["a shoe"]))
    await service.drain()
    assert await service.published("parcels") == [], "what is returned is published together with the ack"
    await service.advance("30s")  # after the dead worker's lease has expired
    await service.drain()
    assert fake.booked == [7, 7]
    assert await deliveries(service) == [7]


async def test_after_a_crash_a_delivery_is_entered_once(service: Harness) -> None:
    service.crash_before_ack(enter)
    await publish(service, Order(8, ["a ring"]))
    await service.drain()
    service.assert_outcomes(enter, "crashed")
    assert await deliveries(service) == [], "what it wrote is gone with its transaction"
    await service.advance("30s")
    await service.drain()
    assert await deliveries(service) == [8]


def test_settings_come_from_the_environment() -> None:
    assert from_environment({"MY_SERVICE_MOST_AT_ONCE": "8", "PATH": "/bin"}) == Settings(most_at_once=8)


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="MY_SERVICE_REGION"):
        from_environment({"MY_SERVICE_REGOIN": "eu"})
