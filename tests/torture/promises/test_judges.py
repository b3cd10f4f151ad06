"""Tests of the judges. For each kind of breach, a history that is correct but for that breach must be found wrong.

The store itself makes the correct part, so this also tests the recording.
"""

from __future__ import annotations

import json
import time
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.outcomes import Settlement
from headrace.model.specs import ConsumerSpec
from tests.support.readers import Clock, Reader, owner
from tests.torture.promises import history, observed
from tests.torture.promises.history import KINDS, RECEIPTS, STREAM
from tests.torture.promises.judges import JUDGES, judge

pytestmark = pytest.mark.asyncio

_HELP = """
create function judge.seq(p_uid text) returns bigint language sql as
    $$ select seq from headrace_streams.work where data->>'uid' = p_uid $$;
create function judge.lease(p_uid text) returns bigint language sql as
    $$ select lease_id from judge.leased where judge.seq(p_uid) = any (seqs) $$;
create function judge.consumer(p_kind text) returns int language sql as $$ select id from judge.consumers where kind = p_kind $$;
-- As if it had been settled only now, by a transaction of its own.
create function judge.settle_late(p_kind text, p_uid text) returns void language sql as $$
    delete from judge.done where consumer = judge.consumer(p_kind) and seqs = array[judge.seq(p_uid)];
    insert into judge.done values (judge.consumer(p_kind), judge.lease(p_uid), array[judge.seq(p_uid)], 'lease');
$$;
"""


class Honest:
    """Three messages of one key for each consumer, handled correctly.

    Attributes:
        readers: The readers by kind.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.readers: dict[str, Reader] = {}

    async def happen(self) -> None:
        connection = self.connection
        for stream in (STREAM, RECEIPTS):
            await store.create_stream(connection, stream)
        for kind in KINDS:
            spec = ConsumerSpec(stream=STREAM, name=kind, filters=(f"{kind}.>",))
            self.readers[kind] = Reader(connection, spec, (await store.declare_consumer(connection, spec)).id, Clock())
        await history.record(connection)
        await connection.execute(observed.TABLES + _HELP)
        for kind in KINDS:
            await self.publish(kind, 1, 2, 3)
            await getattr(self, kind)(self.readers[kind])
        await connection.execute("insert into judge.service_rows values ('plain.service-1.0:1')")
        await self.publish("plain", 1, key="plain.service-1.0")
        await self.plain(self.readers["plain"])
        await self.holds(self.readers["key"])

    async def publish(self, kind: str, *numbers: int, key: str | None = None) -> None:
        key = key or f"{kind}.k"
        data = [json.dumps({"uid": f"{key}:{n}", "n": n}) for n in numbers]
        await store.publish_many(self.connection, STREAM, [key] * len(data), data)

    async def work(self, kind: str, batch: Any) -> None:
        uids = [json.loads(text)["uid"] for text in batch.data]
        leases = [batch.lease_id] * len(uids)
        await self.connection.execute(
            "select judge.work($1, 'ann', $2, $3, $4, $5)", kind, leases, batch.seqs, batch.keys, uids
        )

    async def plain(self, reader: Reader) -> None:
        batch = await reader.lease()
        await self.work("plain", batch)
        for seq in batch.seqs:
            await reader.ack(batch, seq)

    async def batch(self, reader: Reader) -> None:
        first = await reader.lease()
        await self.work("batch", first)
        await reader.nack(first)  # all of the batch is delivered again
        again = await reader.lease()
        await self.work("batch", again)
        await reader.ack_all(again)

    async def key(self, reader: Reader) -> None:
        """A worker that dies after its effect, and another worker after it."""
        first = await reader.lease()
        await self.work("key", first)
        reader.clock.advance(31)
        again = await reader.lease("bob")
        await self.work("key", first)  # the worker was only frozen
        await self.work("key", again)
        await reader.reject(again, again.seqs[0])
        await reader.ack_all(again)

    async def holds(self, reader: Reader) -> None:
        """A worker that was told, while it was at three messages, that their leases are lost."""
        at = store.Owner(reader.id, owner("ann"), STREAM, "key")
        messages = [(1, 1, "key.a"), (1, 2, "key.b"), (2, 3, "key.c")]
        partly, whole = (await store.check_in(self.connection, at, messages)).holds.values()
        ends = Settlement([whole], [partly, partly], [-1, -2], [None, None])
        assert await store.settle(self.connection, reader.id, ends) == []
        await self.connection.execute(
            "insert into judge.saw_settled select *, 'ack', 50, 51 from unnest($1::bigint[], $2::bigint[])",
            [whole, partly, partly],
            [None, -1, -2],
        )

    async def tx(self, reader: Reader) -> None:
        batch = await reader.lease()
        async with self.connection.transaction():
            await self.work(reader.spec.name, batch)
            for text in batch.data:
                await store.publish(self.connection, RECEIPTS, "k", text)
            await reader.ack_within(self.connection, batch)
        await reader.ack_all(batch)

    txbatch = tx

    async def http(self, reader: Reader) -> None:
        for number in range(3):
            asked = time.time()
            batch = await reader.lease(f"client-{number}", 1)
            uid = json.loads(batch.data[0])["uid"]
            await self.connection.execute(
                "insert into judge.saw_received values ($1, 1, $2, 'http.k', $3, $3)", batch.seqs[0], uid, asked
            )
            await reader.ack(batch)
            await self.connection.execute(
                "insert into judge.saw_acked values ($1, 1, $2, $3, $3)", batch.seqs[0], uid, asked
            )


@pytest_asyncio.fixture
async def honest(database: store.Database) -> Any:
    connection = await asyncpg.connect(database.dsn)
    made = Honest(connection)
    await made.happen()
    yield made
    await connection.close()


async def broken(honest: Honest) -> set[str]:
    """Return the beginnings of the broken promises."""
    return {promise for promise, rows in (await judge(honest.connection)).items() if rows}


async def test_an_honest_history_breaks_no_promise(honest: Honest) -> None:
    assert await broken(honest) == set()
    assert await honest.connection.fetchval("select count(*) from judge.given_back") == 2
    assert await honest.connection.fetchval("select count(*) from effects where not held") == 3


FORGED = {
    "no message is lost: all that are in the stream are settled": """
        delete from judge.done where seqs = array[judge.seq('plain.k:3')]""",
    "no message is settled unseen: its handler has worked on it, on its own contents, before it was settled": """
        update judge.effects set uids[3] = 'plain.k:2', held[3] = false where consumer = judge.consumer('plain') and cardinality(uids) = 3""",
    "no message is settled unseen over HTTP: its contents came to a client in the attempt that settled it": """
        update judge.saw_received set attempt = 2 where uid = 'http.k:2'""",
    "nothing of a key is settled before what precedes it": """
        select judge.settle_late('plain', 'plain.k:2')""",
    "nothing of a key is worked on before what precedes it": """
        insert into judge.effects select consumer, worker, leases[1:2], seqs[1:2], uids[1:2], held[1:2]
            from judge.effects where consumer = judge.consumer('plain') and cardinality(uids) = 3;
        update judge.effects set held = array[false, false, true] where consumer = judge.consumer('plain') and cardinality(uids) = 3""",
    "nothing of a key is given to a client before what precedes it is settled": """
        update judge.leased set snapshot = (select snapshot from judge.leased order by xid limit 1)
        where lease_id = judge.lease('http.k:3')""",
    "what is settled never comes again": """
        insert into judge.leased values (judge.consumer('plain'), 1, gen_random_uuid(), array[judge.seq('plain.k:1')])""",
    "what is settled is settled once": """
        insert into judge.done values (judge.consumer('plain'), 1, array[judge.seq('plain.k:3')], 'lease')""",
    "a handler that keeps the last value of a key ends with the last": """
        update judge.last_values set uid = 'plain.k:2' where key = 'plain.k'""",
    "what is worked on under a lease is what the stream has": """
        insert into judge.effects values
            (judge.consumer('plain'), 'bob', array[judge.lease('plain.k:1')], array[judge.seq('plain.k:1')], array['plain.k:9'], array[true])""",
    "what comes over HTTP is what the stream has": """
        insert into judge.saw_received values (judge.seq('http.k:2'), 2, 'http.k:9', 'http.k', 50, 51)""",
    "no stale ack is accepted: a single outcome that was accepted is that of its lease": """
        insert into judge.saw_settled
            select lease_id, seqs[1], 'ack', 50, 51 from judge.given_back where consumer = judge.consumer('key')""",
    "no stale ack is accepted: of a whole lease that was accepted nothing was given back": """
        insert into judge.saw_settled select lease_id, null, 'ack', 50, 51 from judge.given_back where consumer = judge.consumer('key')""",
    "no stale ack is accepted over HTTP: one that was confirmed is that of its attempt": """
        insert into judge.saw_acked values (judge.seq('http.k:2'), 2, 'http.k:2', 50, 51)""",
    "the effects of a transactional handler are there once": """
        insert into judge.effects select * from judge.effects where consumer = judge.consumer('tx')""",
    "the effects of a transactional handler are committed with its ack, and under its lease": """
        update judge.effects set held[3] = false where consumer = judge.consumer('txbatch')""",
    "what a transactional handler publishes is there once": """
        select headrace.publish('receipts', 'k', '{"uid": "tx.k:1"}')""",
    "what a publish has promised is in the stream": """
        insert into judge.saw_published values ('plain.k:9', 50, 51)""",
    "what a service wrote and what it published are committed together, once": """
        insert into judge.service_rows values ('plain.service-1.0:1')""",
    "what app.transaction() said was committed is there": """
        insert into judge.saw_committed values ('plain.service-1.0:2', 50, 51, false)""",
}


@pytest.mark.parametrize("promise", FORGED)
async def test_a_breach_is_found(honest: Honest, promise: str) -> None:
    await honest.connection.execute(FORGED[promise])
    assert await broken(honest) == {promise}


async def test_a_message_that_is_published_twice_is_found(honest: Honest) -> None:
    await honest.publish("plain", 3)
    await honest.plain(honest.readers["plain"])
    assert await broken(honest) == {"what is published is in the stream once, in its order"}


async def test_every_judge_is_tried() -> None:
    assert set(JUDGES) - set(FORGED) == {
        "what is published is in the stream once, in its order",
        "two healthy processes are never at work on one key",
    }


OUTSIDE = [
    "insert into judge.saw_received values (judge.seq('http.k:2'), 2, 'http.k:9', 'http.k', {asked}, {answered})",
    "insert into judge.saw_settled values (77, 1, 'ack', {asked}, {answered})",
    "insert into judge.saw_settled values (77, null, 'ack', {asked}, {answered})",
    "insert into judge.saw_acked values (judge.seq('http.k:2'), 2, 'http.k:2', {asked}, {answered})",
    "insert into judge.saw_published values ('plain.k:9', {asked}, {answered})",
    "insert into judge.saw_committed values ('plain.service-1.0:2', {asked}, {answered}, false)",
]
"""Records of processes that are not in the database."""


@pytest.mark.parametrize("seen", OUTSIDE)
async def test_only_records_that_a_failover_took_back_are_excused(honest: Honest, seen: str) -> None:
    await honest.connection.execute("insert into judge.failovers values (99, 101, 100, 102)")
    await honest.connection.execute(seen.format(asked=99.5, answered=100.5))
    await honest.connection.execute(seen.format(asked=100.9, answered=103))  # the answer came late to a frozen process
    assert await broken(honest) == set()
    await honest.connection.execute(seen.format(asked=99.0, answered=99.9))  # the standby had it
    assert len(await broken_again(honest)) == 1


@pytest.mark.parametrize("seen", OUTSIDE)
async def test_an_answer_of_the_new_primary_is_not_excused(honest: Honest, seen: str) -> None:
    await honest.connection.execute("insert into judge.failovers values (99, 101, 100, 102)")
    await honest.connection.execute(seen.format(asked=101.5, answered=102.5))
    assert len(await broken(honest)) == 1


async def test_a_look_up_that_was_answered_after_the_failover_is_not_excused(honest: Honest) -> None:
    await honest.connection.execute("insert into judge.failovers values (99, 101, 100, 102)")
    await honest.connection.execute("insert into judge.saw_committed values ('plain.service-1.0:2', 99.5, 102.5, true)")
    assert await broken(honest) == {"what app.transaction() said was committed is there"}


async def test_an_effect_that_a_failover_took_back_counts_as_seen_but_not_that_of_a_transactional_handler(
    honest: Honest,
) -> None:
    await honest.connection.execute("""
        insert into judge.failovers values (99, 101, 100, 102);
        update judge.effects set held[3] = false, uids[3] = '' where consumer in (judge.consumer('plain'), judge.consumer('tx')) and seqs[3] > 0;
        update judge.last_values set uid = 'plain.k:2' where key = 'plain.k';
        insert into judge.saw_worked values ('plain', judge.seq('plain.k:3'), 'plain.k:3', 99.5, 100.5)""")
    assert await broken(honest) == {
        "no message is settled unseen: its handler has worked on it, on its own contents, before it was settled",
        "the effects of a transactional handler are committed with its ack, and under its lease",
    }
    await honest.connection.execute(
        "update judge.effects set held[3] = true, uids[3] = 'tx.k:3' where consumer = judge.consumer('tx')"
    )
    assert await broken_again(honest) == set()


async def broken_again(honest: Honest) -> set[str]:
    await honest.connection.execute("discard temp")
    return await broken(honest)


async def test_an_overlap_of_two_healthy_processes_is_found_whatever_became_of_their_leases(honest: Honest) -> None:
    runs = "insert into judge.saw_run values ('plain', 'plain.k', 'ann', 10, 10.1), ('plain', 'plain.k', 'bob', {began}, {ended})"
    await honest.connection.execute(runs.format(began=10.1, ended=10.2))
    await honest.connection.execute(runs.format(began=9.5, ended=11))  # bob was frozen
    assert await broken(honest) == set()
    await honest.connection.execute(runs.format(began=10.05, ended=10.2))
    assert await broken_again(honest) == {"two healthy processes are never at work on one key"}
