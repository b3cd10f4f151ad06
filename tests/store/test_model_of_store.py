"""A consumer with operations in any order, against a plain Python model of the guarantees."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.store.messages.replay import Selection
from tests.support.ledger import Ledger
from tests.support.readers import Clock, Reader
from tests.support.readers import owner as owner_id

T = TypeVar("T")

OWNERS = st.sampled_from(["ann", "bob", "cid"])
KEYS = st.lists(st.sampled_from(["a", "a", "b", "c", "x.y"]), min_size=1, max_size=6)
OUTCOMES = {
    "ack": None,
    "nack": Failure("retry", None, "no"),
    "later": Failure("retry", 10, "not now"),
    "release": Failure("release"),
    "reject": Failure("reject", None, "never"),
}
OUTCOME_LISTS = st.lists(st.sampled_from(["keep", *OUTCOMES]), min_size=1, max_size=6)
WHICH = st.integers(0, 10**6)
SHARES = st.lists(st.integers(1, 3), min_size=1, max_size=4)
SPECS = st.builds(
    ConsumerSpec,
    stream=st.just("replaced"),
    name=st.just("ship"),
    filters=st.sampled_from([(">",), (">",), ("*",)]),
    ordered=st.sampled_from([True, True, True, False]),
    ack_wait=st.just(30.0),
    max_ack_pending=st.sampled_from([1_000, 1_000, 5]),
    max_deliver=st.sampled_from([-1, 1, 2, 3]),
    on_exhausted=st.sampled_from(["dead_letter", "block", "block", "drop"]),
)
FEW = st.tuples(
    st.sampled_from([0, 60, 3_000]),
    st.sampled_from([0, 1, 50]),
    st.sampled_from([0, 3, 30]),
    st.sampled_from([1, 1_000]),
)
"""The bytes of holes that stay with the cursor, the number of keys that are reported at once, the number of fresh
messages that are read in the short way, and the seqs between two marks. Small values exercise the ways that the rest takes."""

streams = count()


class Consumer(RuleBasedStateMachine):
    """One consumer of a separate stream, and the publishers of that stream."""

    loop: asyncio.AbstractEventLoop
    connection: Any
    publishers: list[Any]
    handlers: list[Any]

    @initialize(spec=SPECS, few=FEW)
    def declare(self, spec: ConsumerSpec, few: tuple[int, int, int, int]) -> None:
        stream = f"s{next(streams)}"
        for name, bound in zip(
            ("max_hole_bytes", "max_listed_keys", "few_messages", "mark_interval"), few, strict=True
        ):
            self.do(
                self.connection.execute(
                    f"create or replace function headrace_internal.{name}() returns int language sql immutable as 'select {bound}'"
                )
            )
        spec = msgspec.structs.replace(spec, stream=stream)
        self.do(store.create_stream(self.connection, stream))
        declared = self.do(store.declare_consumer(self.connection, spec))
        self.clock = Clock()
        self.reader = Reader(self.connection, spec, declared.id, self.clock)
        self.ledger = Ledger(spec)
        self.open: dict[int, tuple[Any, list[int]]] = {}
        self.known: list[Batch] = []
        self.acking: dict[int, tuple[Any, int, list[int]]] = {}

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    # Publishers

    def publish_on(self, connection: Any, keys: list[str]) -> list[int]:
        return [self.do(store.publish(connection, self.reader.spec.stream, key, "1")) for key in keys]

    @rule(keys=KEYS)
    def publish(self, keys: list[str]) -> None:
        for seq, key in zip(self.publish_on(self.connection, keys), keys, strict=True):
            self.ledger.published(seq, key, committed=True)

    @rule(keys=KEYS, who=st.integers(0, 1))
    def publish_without_commit(self, keys: list[str], who: int) -> None:
        publisher = self.publishers[who]
        if who not in self.open:
            transaction = publisher.transaction()
            self.do(transaction.start())
            self.open[who] = (transaction, [])
        for seq, key in zip(self.publish_on(publisher, keys), keys, strict=True):
            self.ledger.published(seq, key, committed=False)
            self.open[who][1].append(seq)

    @rule(key=KEYS.map(lambda keys: keys[0]), count=st.sampled_from([10, 40]))
    def publish_many_of_a_key(self, key: str, count: int) -> None:
        self.publish([key] * count)

    @rule(late=KEYS, early=KEYS, who=st.integers(0, 1), times=st.sampled_from([3, 12]))
    def publish_between(self, late: list[str], early: list[str], who: int, times: int) -> None:
        """Publish alternately in a transaction that stays open and in many that commit."""
        for number in range(times):
            self.publish_without_commit([late[number % len(late)]], who)
            self.publish([early[number % len(early)]])

    @precondition(lambda self: self.open)
    @rule(keys=KEYS, which=WHICH)
    def publish_in_a_savepoint_and_undo_it(self, keys: list[str], which: int) -> None:
        publisher = self.publishers[sorted(self.open)[which % len(self.open)]]
        savepoint = publisher.transaction()
        self.do(savepoint.start())
        self.publish_on(publisher, keys)
        self.do(savepoint.rollback())

    @precondition(lambda self: self.open)
    @rule(which=WHICH)
    def commit_late(self, which: int) -> None:
        self.end_a_transaction(which, True)

    @precondition(lambda self: self.open)
    @rule(which=WHICH, commit=st.booleans())
    def end_a_transaction(self, which: int, commit: bool) -> None:
        transaction, seqs = self.open.pop(sorted(self.open)[which % len(self.open)])
        if commit:
            self.do(transaction.commit())
            self.ledger.committed(seqs)
        else:
            self.do(transaction.rollback())
            self.ledger.rolled_back(seqs)

    # Owners

    def lease_once(self, owner: str, limit: int, look: int, max_bytes: int = 10**7) -> Batch:
        batch = self.do(self.reader.lease(owner, limit, look=look, max_bytes=max_bytes))
        self.ledger.leased(batch, owner, limit, self.clock.now)
        if batch.lease_id is not None:
            self.known.append(batch)
        return batch

    @rule(
        owner=OWNERS,
        limit=st.integers(1, 6),
        look=st.sampled_from([1, 2, 5, 2_000]),
        max_bytes=st.sampled_from([1, 3, 10**7]),
    )
    def lease(self, owner: str, limit: int, look: int, max_bytes: int) -> None:
        self.lease_once(owner, limit, look, max_bytes)

    def lease_in_shares(self, shares: list[int], look: int, max_bytes: int = 10**7) -> Batch:
        batch = self.do(self.reader.lease("dealer", sum(shares), look=look, max_bytes=max_bytes, shares=shares))
        self.known += self.ledger.leased(batch, "dealer", sum(shares), self.clock.now, shares)
        return batch

    @rule(shares=SHARES, look=st.sampled_from([1, 2, 5, 2_000]), max_bytes=st.sampled_from([1, 3, 10**7]))
    def deal(self, shares: list[int], look: int, max_bytes: int) -> None:
        self.lease_in_shares(shares, look, max_bytes)

    @precondition(lambda self: self.reader.spec.max_ack_pending == 1_000)
    @rule(shares=SHARES, look=st.sampled_from([1, 3, 2_000]))
    def deal_all_there_is(self, shares: list[int], look: int) -> None:
        empty = 0
        while empty < 2:
            batch = self.lease_in_shares(shares, look)
            empty = 0 if batch.lease_id is not None or batch.more else empty + 1
        if not self.ledger.paused(self.clock.now):
            assert self.ledger.deliverable("dealer", self.clock.now) == [], "it was due, and did not come"

    @rule(shares=SHARES, outcomes=OUTCOME_LISTS, keys=KEYS, crashes=st.integers(0, 2))
    def deal_again_what_failed(self, shares: list[int], outcomes: list[str], keys: list[str], crashes: int) -> None:
        """Lease in shares beside fresh messages, which may have the same keys."""
        self.lease_in_shares(shares, 2_000)
        for _ in range(crashes):
            self.clock.advance(31)
            self.lease_in_shares(shares, 2_000)
        if self.known:
            self.settle(0, 1, outcomes)
        self.publish(keys)
        self.lease_in_shares([2, 2, 6], 2_000)

    @precondition(lambda self: self.known)
    @rule(which=st.lists(WHICH, min_size=1, max_size=3))
    def extend_some_leases(self, which: list[int]) -> None:
        leases = sorted({self.recent(one).lease_id or 0 for one in which})
        alive = self.do(store.extend_leases(self.connection, self.reader.id, leases, now=self.clock.now))
        assert sorted(alive) == self.ledger.extended_one_by_one(leases, self.clock.now)

    @rule(late=KEYS, early=KEYS, who=st.integers(0, 1), owner=OWNERS, limit=st.integers(1, 6))
    def overtake_a_publisher(self, late: list[str], early: list[str], who: int, owner: str, limit: int) -> None:
        """Lease beside an open publisher. Random operations rarely reach a hole."""
        self.publish_without_commit(late, who)
        self.publish(early)
        self.lease_once(owner, limit, 2_000)

    @precondition(lambda self: self.reader.spec.max_ack_pending == 1_000)
    @rule(owner=OWNERS, limit=st.sampled_from([1, 3, 100]), look=st.sampled_from([1, 3, 2_000]))
    def lease_all_there_is(self, owner: str, limit: int, look: int) -> None:
        self.lease_until_empty(owner, limit, look)
        if not self.ledger.paused(self.clock.now):
            assert self.ledger.deliverable(owner, self.clock.now) == [], "it was due, and did not come"

    def lease_until_empty(self, owner: str, limit: int, look: int) -> None:
        empty = 0
        while empty < 2:  # one call may park a late message and the next one deliver it
            batch = self.lease_once(owner, limit, look)
            empty = 0 if batch.lease_id is not None or batch.more else empty + 1

    @rule(owner=OWNERS)
    def extend(self, owner: str) -> None:
        assert sorted(self.do(self.reader.extend(owner))) == sorted(self.ledger.extended(owner, self.clock.now))

    @rule(owner=OWNERS, keep=st.integers(0, 2))
    def reclaim(self, owner: str, keep: int) -> None:
        self.end_all_acks()
        his = [lease_id for lease_id, lease in self.ledger.leases.items() if lease.owner == owner]
        for lease_id in his[keep:]:
            self.ledger.folded(lease_id)
        held = [(lease_id, seq) for lease_id in his[keep:] if lease_id in self.ledger.leases
                for seq in self.ledger.leases[lease_id].attempts]  # fmt: skip
        assert self.do(store.reclaim(self.connection, self.reader.id, owner_id(owner), his[:keep])) == len(held)
        for lease_id, seq in held:
            self.ledger.settled(lease_id, seq, Failure("release"), self.clock.now)

    @precondition(lambda self: self.known)
    @rule(first=WHICH, second=WHICH, outcomes=OUTCOME_LISTS)
    def settle(self, first: int, second: int, outcomes: list[str]) -> None:
        """Settle messages of one or two leases, including lost leases."""
        settlement = Settlement()
        for batch in {b.lease_id: b for b in (self.recent(first), self.recent(second))}.values():
            for place, seq in enumerate(batch.seqs):
                outcome = outcomes[(place + len(settlement.seqs)) % len(outcomes)]
                if outcome != "keep" and batch.lease_id is not None:
                    settlement.leases.append(batch.lease_id)
                    settlement.seqs.append(seq)
                    settlement.failures.append(OUTCOMES[outcome])
        self.settle_and_compare(settlement)

    @precondition(lambda self: self.known)
    @rule(first=WHICH, second=WHICH)
    def ack_whole_leases(self, first: int, second: int) -> None:
        chosen = {self.recent(first).lease_id, self.recent(second).lease_id}
        self.settle_and_compare(Settlement(whole=[lease_id for lease_id in chosen if lease_id is not None]))

    def recent(self, which: int) -> Batch:
        return self.known[-1 - which % min(len(self.known), 6)]

    @precondition(lambda self: self.known)
    @rule(
        which=WHICH, handler=st.integers(0, 1), places=st.sets(st.integers(0, 5), min_size=1, max_size=4),
        end=st.sampled_from(["commit", "commit", "roll back", "leave open", "leave open"]),
    )  # fmt: skip
    def ack_in_a_transaction(self, which: int, handler: int, places: set[int], end: str) -> None:
        self.end_ack(handler, commit=True)
        batch, now = self.recent(which), self.clock.now
        lease_id = batch.lease_id or 0
        being_acked = {seq for _, _, seqs in self.acking.values() for seq in seqs}
        seqs = [seq for place, seq in enumerate(batch.seqs) if place in places and seq not in being_acked]
        if not seqs:
            return
        connection = self.handlers[handler]
        transaction = connection.transaction()
        self.do(transaction.start())
        try:
            self.do(self.reader.ack_within(connection, batch, *seqs))
        except LeaseLost:
            self.do(transaction.rollback())
            assert not all(self.ledger.ackable(lease_id, seq, now) for seq in seqs)
            return
        assert all(self.ledger.ackable(lease_id, seq, now) for seq in seqs)
        self.do(connection.execute("set local idle_in_transaction_session_timeout = 0"))
        self.ledger.acking(lease_id, seqs)
        self.acking[handler] = (transaction, lease_id, seqs)
        if end != "leave open":
            self.end_ack(handler, commit=end == "commit")

    @rule(handler=st.integers(0, 1), commit=st.booleans())
    def end_ack(self, handler: int, commit: bool) -> None:
        if handler in self.acking:
            transaction, lease_id, seqs = self.acking.pop(handler)
            self.do(transaction.commit() if commit else transaction.rollback())
            self.ledger.acked(lease_id, seqs, committed=commit)

    def end_all_acks(self) -> None:
        """Every operation that parks messages of a lease waits for the acks of that lease that are in flight."""
        for handler in list(self.acking):
            self.end_ack(handler, commit=handler == 0)

    @rule(owner=OWNERS, handler=st.integers(0, 1), commit=st.booleans())
    def an_ack_is_in_flight_when_its_lease_expires(self, owner: str, handler: int, commit: bool) -> None:
        batch = self.lease_once(owner, 3, 2_000)
        if batch.lease_id is not None:
            self.ack_in_a_transaction(0, handler, {0}, "leave open")
            self.clock.advance(31)
            self.lease_once("dan", 6, 2_000)
            self.end_ack(handler, commit)
            self.lease_once("dan", 6, 2_000)

    @precondition(lambda self: self.known)
    @rule(which=WHICH, places=st.sets(st.integers(0, 5), min_size=1, max_size=3))
    def start(self, which: int, places: set[int]) -> None:
        batch = self.recent(which)
        seqs = [seq for place, seq in enumerate(batch.seqs) if place in places]
        if seqs:
            assert self.do(self.reader.mark_started(batch, *seqs)) == self.ledger.started(batch.lease_id or 0, seqs)

    @rule(owner=OWNERS, places=st.sets(st.integers(0, 2), max_size=2), outcomes=OUTCOME_LISTS)
    def crash_and_try_again(self, owner: str, places: set[int], outcomes: list[str]) -> None:
        """Start these messages and let the worker die. Another owner leases the messages and settles them."""
        if self.lease_once(owner, 3, 2_000).lease_id is not None:
            if places:
                self.start(0, places)
            self.clock.advance(31)
            if self.lease_once("dan", 6, 2_000).lease_id is not None:
                self.settle(0, 0, outcomes)
                self.lease_once("dan", 6, 2_000)

    @rule(
        owner=OWNERS, places=st.sets(st.integers(0, 3), min_size=1, max_size=3), outcomes=OUTCOME_LISTS,
        then=st.sampled_from(["settle", "settle", "reclaim", "replay"]),
    )  # fmt: skip
    def ack_some_and_go_on(self, owner: str, places: set[int], outcomes: list[str], then: str) -> None:
        """Ack messages in a transaction, and then settle or reclaim their lease, or replay them."""
        if self.lease_once(owner, 4, 2_000).lease_id is not None:
            self.ack_in_a_transaction(0, 0, places, "commit")
            if then == "settle":
                self.settle(0, 0, outcomes)
            elif then == "reclaim":
                self.reclaim(owner, 0)
            else:
                self.replay_all_and_lease_little_by_little(12)

    def settle_and_compare(self, settlement: Settlement) -> None:
        self.end_all_acks()
        now = self.clock.now
        lost = self.do(store.settle(self.connection, self.reader.id, settlement, now=now))
        expected = [self.ledger.settled(lease_id, None, None, now) for lease_id in settlement.whole]
        expected += [
            self.ledger.settled(lease_id, seq, failure, now)
            for lease_id, seq, failure in zip(settlement.leases, settlement.seqs, settlement.failures, strict=True)
        ]
        assert {(one.lease_id, one.seq) for one in lost} == {(one.lease_id, one.seq) for one in expected if one}
        assert len(lost) == len([one for one in expected if one])

    # Time and operators

    @rule(seconds=st.sampled_from([1, 5, 10, 31]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(back=st.integers(-2, 12), to_end=st.sampled_from([False, False, True]))
    def seek(self, back: int, to_end: bool) -> None:
        self.end_all_acks()
        position = None if to_end else max(max(self.ledger.messages, default=0) - back, 0)
        before = self.do(self.reader.cursor())["position"]
        assert self.do(self.reader.seek(position)) == self.ledger.sought(position, before)

    @rule(back=st.integers(0, 6))
    def seek_back(self, back: int) -> None:
        """Move a little from where it is. Parked messages, holes and leases lie on both sides."""
        self.end_all_acks()
        before = self.do(self.reader.cursor())["position"]
        position = max(before - back, 0)
        assert self.do(self.reader.seek(position)) == self.ledger.sought(position, before)

    @rule(ordered=st.booleans(), on_exhausted=st.sampled_from(["dead_letter", "block", "drop"]))
    def change_settings(self, ordered: bool, on_exhausted: str) -> None:
        spec = msgspec.structs.replace(self.reader.spec, ordered=ordered, on_exhausted=on_exhausted)
        self.do(store.declare_consumer(self.connection, spec))
        self.reader.spec = spec
        self.ledger.changed(spec)

    @rule(back=st.integers(0, 12), count=st.integers(0, 8), dry_run=st.booleans())
    def replay(self, back: int, count: int, dry_run: bool) -> None:
        first = max(max(self.ledger.messages, default=0) - back, 1)
        selection = Selection(start_seq=first, end_seq=first + count)
        counted = self.do(store.replay(self.connection, self.reader.id, selection, dry_run=True))
        if not dry_run:
            assert counted == self.ledger.replayed(first, first + count)
            assert self.do(store.replay(self.connection, self.reader.id, selection)) == counted

    @rule(back=st.integers(0, 40))
    def replay_all_and_lease_little_by_little(self, back: int) -> None:
        first = max(max(self.ledger.messages, default=0) - back, 1)
        replayed = self.do(store.replay(self.connection, self.reader.id, Selection(start_seq=first)))
        assert replayed == self.ledger.replayed(first, 10**9)
        for _ in range(3):
            self.lease_once("ann", 2, 1)

    @rule(seconds=st.sampled_from([None, 5, 31]))
    def pause(self, seconds: int | None) -> None:
        until = None if seconds is None else self.clock.now + timedelta(seconds=seconds)
        self.do(store.pause(self.connection, self.reader.id, until))
        self.ledger.paused_until = until or datetime.max.replace(tzinfo=UTC)

    @rule()
    def resume(self) -> None:
        self.do(store.resume(self.connection, self.reader.id))
        self.ledger.paused_until = None

    @rule(which=WHICH)
    def redrive(self, which: int) -> None:
        seqs = self.some_letters(which)
        assert self.do(store.redrive(self.connection, self.reader.id, seqs)) == self.ledger.redriven(seqs)

    @rule(which=WHICH)
    def discard(self, which: int) -> None:
        seqs = self.some_letters(which)
        assert self.do(store.discard(self.connection, self.reader.id, seqs)) == self.ledger.discarded(seqs)

    def some_letters(self, which: int) -> list[int] | None:
        letters = sorted(self.ledger.letters)
        return None if which % 4 == 0 or not letters else [letters[which % len(letters)], 10**9]

    # Invariants, and checks at the end

    @invariant()
    def messages_in_flight_are_those_that_were_leased(self) -> None:
        rows = self.do(
            self.connection.fetch(
                """select lease_id, array(select seq from headrace_internal.messages_of_lease(l)) as seqs, held
                   from headrace_internal.leases as l where consumer_id = $1""",
                self.reader.id,
            )
        )
        assert {row["lease_id"]: sorted(row["seqs"]) for row in rows} == {
            lease_id: sorted(lease.attempts) for lease_id, lease in self.ledger.leases.items()
        }
        assert all(row["held"] == len(row["seqs"]) for row in rows)

    @invariant()
    def acks_are_kept_as_long_as_their_lease(self) -> None:
        rows = self.do(
            self.connection.fetch(
                """select lease_id, array_agg(seq order by seq) as seqs from headrace_internal.acks
                   where consumer_id = $1 group by lease_id""",
                self.reader.id,
            )
        )
        assert {row["lease_id"]: row["seqs"] for row in rows} == {
            lease_id: sorted(lease.acked) for lease_id, lease in self.ledger.leases.items() if lease.acked
        }

    @invariant()
    def dead_letters_are_kept(self) -> None:
        letters = self.do(self.reader.dead_letters())
        assert [(one.seq, one.key, one.reason, one.attempts, one.blocks) for one in letters] == [
            (seq, one.key, one.reason, one.attempts, one.blocks) for seq, one in sorted(self.ledger.letters.items())
        ]

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.drain()

    def drain(self) -> None:
        """No message is lost: in the end every committed message that the consumer wants has been
        delivered and acked."""
        self.resume()
        self.end_all_acks()
        while self.open:
            self.end_a_transaction(0, commit=len(self.open) == 1)
        for _ in range(3):
            self.clock.advance(100)
            self.ledger.expire(self.clock.now)
            while batch := self.next_batch():
                self.settle_and_compare(Settlement(whole=[batch.lease_id or 0]))
            assert self.do(store.redrive(self.connection, self.reader.id)) == self.ledger.redriven(None)
        assert self.ledger.unsettled() == []
        assert [
            self.do(self.reader.count(table))
            for table in ("leases", "acks", "parked", "tails", "dead_letters", "frozen_holes")
        ] == [0] * 6
        cursor = self.do(self.reader.cursor())
        assert list(cursor["holes"]) == []

    def next_batch(self) -> Batch | None:
        for _ in range(3):
            self.clock.advance(2)
            batch = self.lease_once("dan", 7, 5)
            while batch.lease_id is None and batch.more:
                batch = self.lease_once("dan", 7, 5)
            if batch.lease_id is not None:
                return batch
        return None


@pytest.fixture
def machine(dsn: str) -> Iterator[type[Consumer]]:
    """The state machine on a fresh database, with an event loop that its synchronous rules run."""
    loop = asyncio.new_event_loop()
    connections = [loop.run_until_complete(asyncpg.connect(dsn)) for _ in range(5)]

    Consumer.loop = loop
    Consumer.connection, *others = connections
    Consumer.publishers, Consumer.handlers = others[:2], others[2:]
    yield Consumer
    for connection in connections:
        connection.terminate()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


QUIETLY = settings(suppress_health_check=list(HealthCheck))


def test_the_store_keeps_its_promises_under_any_order_of_operations(machine: type[Consumer]) -> None:
    run_state_machine_as_test(machine, settings=settings(QUIETLY, max_examples=15, stateful_step_count=50))


@pytest.mark.torture
def test_the_store_keeps_its_promises_over_thousands_of_histories(machine: type[Consumer]) -> None:
    run_state_machine_as_test(machine, settings=settings(QUIETLY, max_examples=3_000, stateful_step_count=80))
