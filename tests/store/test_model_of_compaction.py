"""A compacted stream and a consumer of it, with operations in any order, against a plain Python model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from headrace import store
from headrace.model.outcomes import Failure
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.store.messages.replay import Selection
from tests.support.readers import Clock, Reader

T = TypeVar("T")

OWNERS = st.sampled_from(["ann", "bob"])
PUTS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 2)), min_size=1, max_size=5)
streams = count()


class Compacted(RuleBasedStateMachine):
    """`newest` is the expected content of the stream, and `done` are the seqs that the consumer has settled."""

    loop: asyncio.AbstractEventLoop
    connection: Any
    publishers: list[Any]

    @initialize(dedupe=st.booleans())
    def declare(self, dedupe: bool) -> None:
        stream = f"c{next(streams)}"
        spec = ConsumerSpec(stream=stream, name="ship", max_deliver=-1)
        self.do(store.create_stream(self.connection, StreamSpec(name=stream, one_message_per_key=True, dedupe=dedupe)))
        self.clock = Clock()
        self.reader = Reader(
            self.connection, spec, self.do(store.declare_consumer(self.connection, spec)).id, self.clock
        )
        self.dedupe = dedupe
        self.newest: dict[str, tuple[int, str]] = {}
        self.open: dict[int, tuple[Any, dict[str, tuple[int, str]]]] = {}
        self.done: set[int] = set()
        self.due: dict[int, datetime] = {}
        self.leases: dict[int, tuple[str, datetime, dict[int, str]]] = {}
        self.batches: list[Batch] = []

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    # Publishers

    def put(self, connection: Any, puts: list[tuple[str, int]], before: dict[str, tuple[int, str]]) -> None:
        """Publish on a connection that sees the rows of `before`, and record the expected rows."""
        wanted = {key: str(value) for key, value in puts}
        changed = {
            key: value for key, value in wanted.items() if not self.dedupe or before.get(key, (0, ""))[1] != value
        }
        keys, data = [key for key, _ in puts], [str(value) for _, value in puts]
        assert self.do(store.publish_many(connection, self.reader.spec.stream, keys, data)) == len(changed)
        rows = self.do(
            connection.fetch(
                f"select key, seq, data from headrace_streams.{self.reader.spec.stream} where key = any($1)",
                list(changed),
            )
        )
        assert {row["key"]: row["data"] for row in rows} == changed
        for row in rows:
            assert row["seq"] > before.get(row["key"], (0, ""))[0]
            before[row["key"]] = (row["seq"], row["data"])

    def locked(self) -> set[str]:
        return {key for _, changes in self.open.values() for key in changes}

    @rule(puts=PUTS)
    def publish(self, puts: list[tuple[str, int]]) -> None:
        free = [(key, value) for key, value in puts if key not in self.locked()]
        if free:
            self.put(self.connection, free, self.newest)

    @rule(puts=PUTS, who=st.integers(0, 1))
    def publish_without_commit(self, puts: list[tuple[str, int]], who: int) -> None:
        others = {key for other, (_, changes) in self.open.items() if other != who for key in changes}
        free = [(key, value) for key, value in puts if key not in others]
        if not free:
            return
        publisher = self.publishers[who]
        if who not in self.open:
            transaction = publisher.transaction()
            self.do(transaction.start())
            self.open[who] = (transaction, {})
        changes = self.open[who][1]
        sees = {**self.newest, **changes}
        self.put(publisher, free, sees)
        for key, _ in free:  # the publisher locks these rows even where nothing changed
            changes[key] = sees[key]

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 1), commit=st.booleans())
    def end_a_transaction(self, which: int, commit: bool) -> None:
        transaction, changes = self.open.pop(sorted(self.open)[which % len(self.open)])
        if commit:
            self.do(transaction.commit())
            self.newest.update(changes)
        else:
            self.do(transaction.rollback())

    # The consumer

    def expire(self) -> None:
        late = {owner for owner, expires, _ in self.leases.values() if expires <= self.clock.now}
        self.leases = {id_: lease for id_, lease in self.leases.items() if lease[0] not in late}

    def in_flight(self) -> set[str]:
        return {key for _, _, held in self.leases.values() for key in held.values()}

    def take(self, owner: str, limit: int, look: int = 2_000) -> Batch:
        batch = self.do(self.reader.lease(owner, limit, look=look))
        self.expire()
        busy = self.in_flight()
        for seq, key, data in zip(batch.seqs, batch.keys, batch.data, strict=True):
            assert self.newest[key] == (seq, data), f"{key}: not the newest"
            assert key not in busy, f"{key} is being worked on"
            assert seq not in self.done, f"{key}: once too often"
            assert self.due.get(seq, self.clock.now) <= self.clock.now, f"{key}: before it was due"
            busy.add(key)
        if batch.lease_id is not None:
            held = dict(zip(batch.seqs, batch.keys, strict=True))
            self.leases[batch.lease_id] = (owner, self.clock.now + timedelta(seconds=30), held)
            self.batches.append(batch)
        return batch

    @rule(owner=OWNERS, limit=st.integers(1, 4), look=st.sampled_from([1, 3, 2_000]))
    def lease(self, owner: str, limit: int, look: int) -> None:
        self.take(owner, limit, look)

    @rule(owner=OWNERS, limit=st.integers(1, 4), look=st.sampled_from([1, 2_000]))
    def lease_all_there_is(self, owner: str, limit: int, look: int) -> None:
        empty = 0
        while empty < 2:
            batch = self.take(owner, limit, look)
            empty = 0 if batch.lease_id is not None or batch.more else empty + 1
        missing = {
            key
            for key, (seq, _) in self.newest.items()
            if seq not in self.done and self.due.get(seq, self.clock.now) <= self.clock.now
        } - self.in_flight()
        assert missing == set(), "it was due, and did not come"

    @precondition(lambda self: self.batches)
    @rule(
        back=st.integers(0, 3),
        outcomes=st.lists(st.sampled_from(["ack", "now", "later", "release", "reject"]), min_size=1, max_size=4),
    )
    def settle(self, back: int, outcomes: list[str]) -> None:
        batch = self.batches[-1 - back % len(self.batches)]
        failures = {
            "now": Failure("retry"),
            "later": Failure("retry", 10),
            "release": Failure("release"),
            "reject": Failure("reject"),
        }
        for place, seq in enumerate(batch.seqs):
            outcome = outcomes[place % len(outcomes)]
            lost = self.do(self.reader.fail(batch, failures.get(outcome), seq))
            held = self.leases.get(batch.lease_id or 0, ("", self.clock.now, dict[int, str]()))[2]
            assert bool(lost) == (seq not in held)
            if lost:
                continue
            key = held.pop(seq)
            if not held:
                del self.leases[batch.lease_id or 0]
            if outcome in ("ack", "reject"):
                self.done.add(seq)
            elif outcome == "later" and self.newest[key][0] == seq:
                self.due[seq] = self.clock.now + timedelta(seconds=10)

    @rule(seconds=st.sampled_from([1, 10, 31]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def rewind(self) -> None:
        if not self.open:  # a seek skips messages that commit below it later
            self.do(self.reader.seek(0))
            self.leases, self.done, self.due = {}, set(), {}

    @rule()
    def replay(self) -> None:
        busy = {seq for _, _, held in self.leases.values() for seq in held}
        again = {seq for seq, _ in self.newest.values() if seq in self.done} - busy
        assert self.do(store.replay(self.connection, self.reader.id, Selection())) == len(again)
        self.done -= again

    def teardown(self) -> None:
        if not hasattr(self, "newest"):
            return
        while self.open:
            self.end_a_transaction(0, commit=len(self.open) == 1)
        self.clock.advance(100)
        for _ in range(200):
            batch = self.take("cid", 3, 2)
            if batch.lease_id is None and not batch.more:
                self.clock.advance(5)
                if self.take("cid", 3, 2).lease_id is None:
                    break
                continue
            self.do(self.reader.ack_all(batch))
            self.done.update(batch.seqs)
            self.leases.pop(batch.lease_id or 0, None)
        self.clock.advance(100)
        for _ in range(20):
            batch = self.take("cid", 100)
            self.do(self.reader.ack_all(batch))
            self.done.update(batch.seqs)
            self.leases.pop(batch.lease_id or 0, None)
        assert {seq for seq, _ in self.newest.values()} <= self.done
        rows = self.do(self.connection.fetch(f"select key, seq, data from headrace_streams.{self.reader.spec.stream}"))
        assert {row["key"]: (row["seq"], row["data"]) for row in rows} == self.newest
        assert [self.do(self.reader.count(table)) for table in ("leases", "parked", "replays")] == [0, 0, 0]


@pytest.fixture
def machine(dsn: str) -> Iterator[type[Compacted]]:
    """The state machine on a fresh database, with an event loop that its synchronous rules run."""
    loop = asyncio.new_event_loop()
    connections = [loop.run_until_complete(asyncpg.connect(dsn)) for _ in range(3)]

    Compacted.loop = loop
    Compacted.connection, *Compacted.publishers = connections
    yield Compacted
    for connection in connections:
        connection.terminate()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


QUIETLY = settings(suppress_health_check=list(HealthCheck))


def test_a_compacted_stream_keeps_its_promises_under_any_order_of_operations(machine: type[Compacted]) -> None:
    run_state_machine_as_test(machine, settings=settings(QUIETLY, max_examples=15, stateful_step_count=40))


@pytest.mark.torture
def test_a_compacted_stream_keeps_its_promises_over_thousands_of_histories(machine: type[Compacted]) -> None:
    run_state_machine_as_test(machine, settings=settings(QUIETLY, max_examples=2_000, stateful_step_count=60))
