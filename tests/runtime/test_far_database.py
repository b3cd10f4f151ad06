"""A database that is far away, or busy: each lease call takes longer than a tenth of a second."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from headrace import App, Message, store

CALL = 0.15
MESSAGES = 600


@pytest.mark.asyncio
async def test_lease_calls_that_take_long_bring_many_messages(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, sizes, seen = store.lease, list[int](), list[int]()

    async def slow(*args: Any, **options: Any) -> Any:
        await anyio.sleep(CALL)
        batch = await lease(*args, **options)
        sizes.append(len(batch.seqs))
        return batch

    monkeypatch.setattr(store, "lease", slow)
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def ship(message: Message) -> None:
        seen.append(message.seq)

    async with app:
        await app.publish_many("orders", [(f"k{number}", number) for number in range(MESSAGES)])
    async with app.running():
        await app.idle()
    assert sorted(seen) == list(range(1, MESSAGES + 1))
    assert len([size for size in sizes if size]) <= 30, sizes
