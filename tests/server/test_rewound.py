"""A server does not use cached messages and consumers of a database with a rewound history.

A rewound database is simulated here: the test changes what a failover would have changed, and removes
the record of the history, as Postgres does. `tests/pooler/test_failover.py` has a real failover.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.server.engine import Engine
from tests.server.conftest import Consume

pytestmark = pytest.mark.asyncio

REWIND = "delete from headrace_internal.history"


async def test_messages_of_another_history_are_not_returned_as_those_of_this_one(
    engine: Engine, consume: Consume
) -> None:
    """The server does not notice that the database was away, as behind a pooler."""
    ship, bill = await consume("ship"), await consume("bill")
    await engine.app.publish("orders", "a", "lost")
    assert (await engine.receive(ship, 10)).data == ['"lost"']
    await engine.app.database.fetch("""update headrace_streams.orders set key = 'b', data = '"new"'""")
    await engine.app.database.fetch(REWIND)
    share = await engine.receive(bill, 10)
    assert (share.keys, share.data) == (["b"], ['"new"'])
    assert await engine.settle(bill, share.ack_ids) == []


async def test_a_failover_between_a_lease_and_the_reading_of_its_messages_is_noticed(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship, bill = await consume("ship"), await consume("bill")
    database, lease = engine.app.database, store.lease
    await engine.app.publish("orders", "a", "lost")
    await engine.receive(ship, 10)

    async def and_rewind(*args: Any, **options: Any) -> Any:
        batch = await lease(*args, **options)
        monkeypatch.undo()
        assert batch.keys == [None]
        engine._caches.clear()  # as a batch of another consumer in the new history does
        await database.fetch("""update headrace_streams.orders set data = '"new"'""")
        await database.fetch(REWIND)
        return batch

    monkeypatch.setattr(store, "lease", and_rewind)
    with pytest.raises(StoreUnavailable, match="failed over"):
        await engine.receive(bill, 10)
    share = await engine.receive(bill, 10)
    assert (share.data, share.attempts) == (['"new"'], [1])


async def test_a_consumer_gets_no_messages_of_another_one_that_has_its_number_since_a_failover(
    engine: Engine, consume: Consume
) -> None:
    ship = await consume("ship")
    database = engine.app.database
    await engine.app.publish("orders", "a", 1)
    assert await engine.settle(ship, (await engine.receive(ship, 10)).ack_ids) == []
    await engine.app.publish("orders", "b", 2)
    await database.fetch(
        "update headrace_internal.consumers set name = 'bill', uid = gen_random_uuid() where name = 'ship'"
    )
    await database.fetch(REWIND)
    with pytest.raises(UnknownConsumer, match="'ship' no longer exists"):
        await engine.receive(ship, 10)
    bill = await engine.consumer("orders", "bill")
    assert bill.number == ship.number
    share = await engine.receive(bill, 10)
    assert (share.data, share.attempts) == (["2"], [1])


async def test_the_key_of_ack_ids_is_that_of_the_history(engine: Engine, consume: Consume) -> None:
    ship = await consume("ship")
    database = engine.app.database
    await engine.app.publish_many("orders", [("a", 1), ("b", 2)])
    await engine.receive(ship, 1)
    await database.fetch("update headrace_internal.secrets set value = sha256('restored') where name = 'ack_ids'")
    await database.fetch(REWIND)
    share = await engine.receive(ship, 1)
    engine._ack_ids = None  # as another server that has just started
    assert await engine.settle(ship, share.ack_ids) == []
