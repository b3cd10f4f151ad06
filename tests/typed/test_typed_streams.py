"""Typed streams at work: the examples of the page, routers and worker processes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace import AesGcm, App, InvalidData, Router
from headrace.testing import Harness
from tests.typed.pages import page_module


class Event(msgspec.Struct):
    id: int


class Order(Event):
    total: float = 0.0


KEY = AesGcm.new_key()


def double(order: Order) -> tuple[str, Order]:
    return "doubled", Order(order.id, order.total * 2)


@pytest.mark.asyncio
async def test_the_examples_of_the_page_run(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_module("typed-streams", tmp_path)
    monkeypatch.setattr(page, "Harness", lambda app: Harness(app, dsn))
    await page.test_an_order_is_billed()
    assert sorted(capsys.readouterr().out.splitlines()) == ["1 orders", "orders.17 is shipped"]


@pytest.mark.asyncio
async def test_a_router_a_process_and_a_base_class_see_the_streams_type(dsn: str) -> None:
    app, router = App(), Router()
    orders = router.stream("orders", Order, codec=AesGcm({"k": KEY}))
    doubled = app.stream("doubled", Order)
    seen: list[object] = []
    orders.consumer(runner="process", publishes=doubled, concurrency=1)(double)

    @orders.consumer()
    async def general(event: Event) -> None:
        seen.append(event)

    @doubled.consumer(publishes=orders, max_deliver=1)
    async def wrong(order: Order):  # type: ignore[no-untyped-def]
        return "k", {"id": 1}

    app.include(router)
    async with Harness(app, dsn) as harness:
        await orders.publish(Order(1, 1.5), key="k")
        await harness.drain()
        assert seen == [Order(1, 1.5)]
        [letter] = await harness.dead_letters(wrong)
        assert letter.data == {"id": 1, "total": 3.0}
        assert (
            letter.error
            == "InvalidData: The stream 'orders' carries Order, not dict: publish a value of that type, or JSON as msgspec.Raw."
        )
        with pytest.raises(InvalidData, match="carries Order, not int"):
            await app.publish_many("doubled", [("a", Order(1)), ("b", 2)])
