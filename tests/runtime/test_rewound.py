"""A worker whose database was rewound by a failover works for its own consumer, and for no other one that was given its number."""

from __future__ import annotations

import pytest

from headrace import App, store
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Seen, running
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
        async with app.database.transaction() as connection:  # as the failover would have left it
            await connection.execute("update headrace.consumers set name = 'bill', uid = gen_random_uuid()")
            await connection.execute("delete from headrace.history")
            await store.publish(connection, "orders", "a", "2")
        await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["deleted"]
    assert seen.notes == [1]
    async with app:
        number = await store.consumer_id(app.database, "orders", "bill")
        bill = Reader(app.database, ConsumerSpec(stream="orders", name="bill"), number, Clock())
        batch = await bill.lease()
        assert (batch.data, batch.attempts, batch.crashes) == (["2"], [1], None)
