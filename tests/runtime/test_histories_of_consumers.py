"""The history of a consumer with workers: each way of acking leaves one entry, with the process and the duration."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from headrace import App, Batch, Message, Reject, Transaction
from headrace.model.watching.completions import Completion
from headrace.model.watching.processes import own_process_name
from tests.runtime.running import consumer, running, work_off

pytestmark = pytest.mark.asyncio


async def history(app: App, name: str = "ship", **page: Any) -> list[Completion]:
    return (await app.admin.history("orders", name, limit=1000, **page)).completions


async def test_messages_of_each_kind_of_handler_are_in_the_history(dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders", history="7d")
    async def plain(number: int) -> None: ...

    @app.consumer("orders", history="7d")
    async def single(number: int, message: Message) -> None:
        if number % 2:
            await message.ack()

    @app.consumer("orders", history="7d", batch=10)
    async def together(batch: Batch) -> None: ...

    @app.consumer("orders", history="7d", transactional=True)
    async def transacted(number: int, tx: Transaction) -> None:
        await tx.execute("select pg_current_xact_id()")

    @app.consumer("orders", history="7d", transactional=True, batch=10)
    async def transacted_together(batch: Batch, tx: Transaction) -> None: ...

    @app.consumer("orders", history="7d")
    async def brought(number: int, message: Message) -> None:
        async with app.transaction() as tx:
            await message.ack(tx=tx)

    @app.consumer("orders")
    async def none(number: int) -> None: ...

    async with app:
        await work_off(app, *[(f"k{number % 5}", number) for number in range(40)])
        for name in ("plain", "single", "together", "transacted", "transacted_together", "brought"):
            found = await history(app, name)
            assert Counter(one.seq for one in found) == Counter(range(1, 41)), name
            assert {(one.outcome, one.attempts, one.process) for one in found} == {("acked", 1, own_process_name())}, (
                name
            )
            assert all(one.seconds is not None and 0 <= one.seconds < 60 for one in found), name
        assert (
            await app.database.fetchval("select count(distinct consumer_id) from headrace_internal.completions")
        ) == 6


async def test_a_history_is_kept_from_an_edit_on(dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with app, running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        await app.admin.edit_consumer("orders", "ship", history="1h")
        await app.publish("orders", "a", 2)
        await app.idle()
        assert [one.seq for one in await history(app)] == [2]
        await app.admin.edit_consumer("orders", "ship", history=None)
        await app.publish("orders", "a", 3)
        await app.idle()
        assert await app.database.fetchval("select count(*) from headrace_internal.completions") == 1


async def test_a_rejected_message_has_an_entry_with_its_duration(dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders", history="7d")
    async def ship(number: int) -> None:
        raise Reject("no")

    async with app:
        await work_off(app, ("a", 1))
        (found,) = await history(app)
        assert (found.outcome, found.process) == ("dead_letter", own_process_name())
        assert found.seconds is not None
        assert (await consumer(app, "ship")).dead_letters == 1
