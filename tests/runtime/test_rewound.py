"""A worker and a failover that rewinds its database. Leases from before the rewind count if the store has them as the
worker knows them.

The worker keeps working for its own consumer, and not for another consumer that got the same
number.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App, store
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Gate, Seen, running
from tests.support.readers import Clock, Reader


@pytest.mark.asyncio
async def test_a_worker_gets_no_messages_of_a_consumer_that_a_failover_gave_its_number(dsn: str) -> None:
    app, seen = App(dsn, streams=["orders"]), Seen()

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        # The state after such a failover. The lock stops lease calls, which a real failover would
        # have ended.
        async with app.database.transaction() as connection:
            await connection.execute("select pg_advisory_xact_lock(1212498508, id) from headrace_internal.consumers")
            await connection.execute("update headrace_internal.consumers set name = 'bill', uid = gen_random_uuid()")
            await connection.execute("delete from headrace_internal.history")
            await store.publish(connection, "orders", "a", "2")
        await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["deleted"]
    assert seen.notes == [1]
    async with app:
        number = await store.consumer_id(app.database, "orders", "bill")
        bill = Reader(app.database, ConsumerSpec(stream="orders", name="bill"), number, Clock())
        batch = await bill.lease()
        assert (batch.data, batch.attempts, batch.crashes) == (["2"], None, None)


async def rewind(database: store.Database) -> None:
    """Delete the history as a failover does, but undo nothing. So all leases agree with the store, and stay valid."""
    await database.fetch("delete from headrace_internal.history")


@pytest.mark.asyncio
async def test_an_outcome_from_before_a_rewind_releases_nothing_leased_since(
    dsn: str, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome arrives late because its connection died in silence. A lease call on another
    connection reported the rewind long before."""
    app, seen, late = App(dsn, streams=["orders"]), Seen(), Gate()
    settle = store.settle

    async def settle_late(*args: Any, **named: Any) -> Any:
        if not late.passed:
            await late.wait()
        return await settle(*args, **named)

    monkeypatch.setattr(store, "settle", settle_late)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish("orders", "a", 1)
        await late.until(1)
        await rewind(database)
        await app.publish("orders", "a", 2)
        await seen.until(2)
        late.open()
        await app.idle()
    assert seen.notes == [1, 2]


@pytest.mark.asyncio
async def test_a_lease_answered_after_a_settle_reported_a_rewind_is_released(
    dsn: str, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease may hold messages that follow released ones of the same key, which are still leased
    to this worker."""
    app, seen, settling, leasing = App(dsn, streams=["orders"]), Seen(), Gate(), Gate()
    settle, lease = store.settle, store.lease

    async def settle_late(*args: Any, **named: Any) -> Any:
        if not settling.passed:
            await settling.wait()
        try:
            return await settle(*args, **named)
        finally:
            leasing.open()

    async def lease_late(*args: Any, **named: Any) -> Any:
        batch = await lease(*args, **named)
        if batch.lease_id is not None and seen.notes and not leasing.passed:
            await leasing.wait()
        return batch

    monkeypatch.setattr(store, "settle", settle_late)
    monkeypatch.setattr(store, "lease", lease_late)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish("orders", "a", 1)
        await settling.until(1)
        await app.publish("orders", "a", 2)
        await leasing.until(1)
        await rewind(database)
        settling.open()
        await app.idle()
    assert seen.notes == [1, 2]
