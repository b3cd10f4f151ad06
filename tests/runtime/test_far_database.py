"""A database that is far away, or busy: each lease call takes longer than a tenth of a second."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App, Message, store
from headrace.model.clock import Time
from tests.support.waiting import until

CALL = 0.15
MESSAGES = 600


@pytest.mark.asyncio
async def test_lease_calls_that_take_long_bring_many_messages(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, sizes, seen, now = store.lease, list[int](), list[int](), 0.0

    async def slow(*args: Any, **options: Any) -> Any:
        nonlocal now
        await until(lambda: len(seen) == sum(sizes))  # the handlers take no time
        batch = await lease(*args, **options)
        now += CALL
        sizes.append(len(batch.seqs))
        return batch

    monkeypatch.setattr(store, "lease", slow)
    app = App(dsn, streams=["orders"])
    app._time = Time(clock=lambda: now)

    @app.consumer("orders", ack_wait="1h")  # only lease calls move the clock, and no extension comes meanwhile
    async def ship(message: Message) -> None:
        seen.append(message.seq)

    async with app:
        await app.publish_many("orders", [(f"k{number}", number) for number in range(MESSAGES)])
    async with app.running():
        await app.idle()
    assert sorted(seen) == list(range(1, MESSAGES + 1))
    assert len([size for size in sizes if size]) <= 30, sizes
