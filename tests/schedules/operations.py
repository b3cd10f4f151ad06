"""The operations that run against each other. Each one is a generator that yields SQL and gets the rows of its statements.

What an operation yields is one round trip, and a transaction unless it opens one. Statements name the arguments of
functions, so that only a change of these names matters here. Here are those of publishers and workers, and in `operators.py`
the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Set
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID, uuid5

from tests.schedules.log import Delivery, Log
from tests.schedules.sessions import Rows

Steps = Generator[str, list[Rows], None]

_OWNERS = UUID("6f6f6f6f-0000-4000-8000-000000000000")
SHIP = ORDERS = 1
"""The ids of the consumer and of the stream. A consumer that is deleted and made again has another id."""


@cache
def owner_id(name: str) -> str:
    return str(uuid5(_OWNERS, name))


def at(seconds: float) -> str:
    """Return a time, this many seconds after the time of the state, as SQL."""
    return f"timestamptz '2030-01-01 00:00Z' + interval '{seconds} s'"


@dataclass(frozen=True)
class Operation:
    name: str
    steps: Callable[[Log], Steps]
    allowed: frozenset[str] = frozenset()
    """The SQLSTATEs with which it may fail."""
    prelude: tuple[str, ...] = ()
    """What its session has done before."""
    owner: str | None = None
    """The owner that must have a lease."""
    elsewhere: frozenset[str] = frozenset()
    """The SQLSTATEs with which calls beside it may fail."""

    @property
    def is_catalog(self) -> bool:
        """Whether it changes the catalog, so that all sessions plan anew and a schedule takes fifty times as long."""
        return bool(self.elsewhere)


OPERATIONS: dict[str, Operation] = {}

GONE = frozenset({"HR002", "23503"})  # the consumer was deleted, as a call finds, or a row that it writes
LOST = frozenset({"HR007"})
REPLACED = frozenset({"XX000", "42704", "42883", "42P01"})
"""What a call used was replaced or dropped: a client repeats the call (`store/database/missing_objects.py`)."""


def operation(
    name: str, *allowed: str, prelude: tuple[str, ...] = (), owner: str | None = None, elsewhere: Set[str] = frozenset()
) -> Callable[[Callable[[Log], Steps]], Callable[[Log], Steps]]:
    def add(steps: Callable[[Log], Steps]) -> Callable[[Log], Steps]:
        OPERATIONS[name] = Operation(name, steps, frozenset(allowed) | GONE, prelude, owner, frozenset(elsewhere))
        return steps

    return add


# Publishing


def publish_sql(*keys: str) -> str:
    data = ", ".join("'1'" for _ in keys)
    return (
        "select headrace_internal.publish_messages(p_stream => 'orders', "
        f"p_keys => array[{', '.join(repr(key) for key in keys)}], p_data => array[{data}]::json[])"
    )


@operation("publish")
def _publish(log: Log) -> Steps:
    yield "select headrace_internal.publish_message(p_stream => 'orders', p_key => 'a', p_data => '1')"
    log.published += 1


@operation("publish_many")
def _publish_many(log: Log) -> Steps:
    yield publish_sql("a", "f", "a")
    log.published += 3


@operation("publish_in_transaction")
def _publish_in_transaction(log: Log) -> Steps:
    yield f"begin; {publish_sql('a')}"
    yield publish_sql("c")
    yield "commit"
    log.published += 2


@operation("late", prelude=("begin", publish_sql("a")))
def _late(log: Log) -> Steps:
    """Commits what it had published before others did."""
    yield "commit"
    log.published += 1


@operation("late_rollback", prelude=("begin", publish_sql("a")))
def _late_rollback(_: Log) -> Steps:
    yield "rollback"


def _with_options(key: str, options: str) -> str:
    return (
        f"select (headrace_internal.publish_with_options(p_stream => 'orders', p_keys => '{{{key}}}', p_data => array['1']::json[], "
        f"p_headers => null, p_options => '{options}')).published"
    )


@operation("publish_unique")
def _publish_unique(log: Log) -> Steps:
    rows = yield _with_options("u", '{"unique_key": "one"}')
    log.published += int(rows[0][0][0] or 0)


@operation("publish_with_id")
def _publish_with_id(log: Log) -> Steps:
    rows = yield _with_options("i", '{"message_id": "m"}')
    log.published += int(rows[0][0][0] or 0)


@operation("schedule")
def _schedule(log: Log) -> Steps:
    rows = yield _with_options("s", '{"deliver_at": "2029-06-01T00:00:00Z"}')
    log.published += int(rows[0][0][0] or 0)


@operation("publish_scheduled")
def _publish_scheduled(_: Log) -> Steps:
    yield f"select headrace_internal.publish_scheduled(p_stream => {ORDERS}, p_now => {at(0)})"


# Leasing


@cache
def lease_sql(
    owner: str,
    limit: int = 100,
    seconds: float = 0,
    shares: str = "null",
    scan_limit: int = 1000,
    free_keys: bool = False,
) -> str:
    return (
        f"select to_json(l) from headrace_internal.lease(p_consumer => {SHIP}, p_owner => '{owner_id(owner)}', "
        f"p_bounds => row({limit}, {scan_limit}, 1000000, {free_keys}), p_now => {at(seconds)}, p_shares => {shares}) as l"
    )


def _leasing(name: str, owner: str, *, then: str = "", **options: Any) -> None:
    @operation(name)
    def steps(log: Log) -> Steps:
        before = log.state()
        acked = {seq for _, seq in log.acks()}
        (row,), *_ = yield lease_sql(owner, **options)
        batch = json.loads(row[0] or "null")
        if not batch["lease_id"]:
            return
        leased = batch["lease_ids"] or [batch["lease_id"]]
        after = log.state()
        if before is None or after is None:
            return
        if batch["lease_ids"]:
            for lease in after["leases"]:
                if lease["id"] in leased:
                    log.deliveries.append(Delivery(lease["owner"], lease["id"], lease["seqs"], before, after, acked))
        else:
            log.deliveries.append(Delivery(owner_id(owner), batch["lease_id"], batch["seqs"], before, after, acked))
        if then:
            yield from settling(log, batch["lease_id"], batch["seqs"], then)


def settling(log: Log, lease: int, seqs: list[int], outcome: str) -> Steps:
    rows = yield settle_sql(lease, seqs, outcome)
    lost = {(int(row[0] or 0), int(row[1]) if row[1] else None) for row in rows[0]}
    counted = [(lease, seq) for seq in seqs if not {(lease, seq), (lease, None)} & lost]
    if outcome == "ack":
        log.acked += counted
    elif outcome == "whole":
        log.acked_whole += counted
    else:
        log.put_back |= set(counted)


def settle_sql(lease: int, seqs: list[int], outcome: str) -> str:
    is_whole = outcome == "whole"
    whole = f"'{{{lease}}}'" if is_whole else "'{}'"
    chosen = [] if is_whole else seqs
    first = min(seqs) if is_whole and sorted(seqs) == [*range(min(seqs), max(seqs) + 1)] else "null"
    report = f"row('host:1', '{{{len(seqs)}}}', '{{{first}}}', null, null, null, null)" if is_whole else "null"
    failure = {
        "kind": "retry" if outcome == "later" else outcome,
        "delay": 1000 if outcome == "later" else None,
        "error": "no",
    }
    failures = ", ".join(["null" if outcome == "ack" else f"'{json.dumps(failure)}'"] * len(chosen))
    return (
        f"select lost_lease, lost_seq from headrace_internal.settle_outcomes(p_consumer => {SHIP}, p_whole => {whole}, "
        f"p_leases => array[{', '.join([str(lease)] * len(chosen))}]::bigint[], "
        f"p_seqs => array[{', '.join(map(str, chosen))}]::bigint[], p_failures => array[{failures}]::json[], p_now => {at(0)}, "
        f"p_report => {report})"
    )


_leasing("lease_ann", "ann")
_leasing("lease_bob", "bob")
_leasing("lease_scanning", "bob", limit=40)
_leasing("lease_one", "bob", limit=1)
_leasing("lease_shares", "http", limit=4, shares="'{2,2}'", then="ack")
_leasing("lease_late", "cid", seconds=10)
_leasing("lease_late_bob", "bob", seconds=10)
_leasing("lease_expired", "dan", seconds=100)
_leasing("work", "eve", then="whole")
_leasing("work_one", "eve", limit=1, then="ack")
_leasing("work_retry", "eve", then="retry")
_leasing("scan_one", "eve", limit=3, scan_limit=1)
_leasing("lease_free", "ann", limit=2, free_keys=True)
_leasing("lease_free_bob", "bob", free_keys=True)


def _acting(name: str, owner: str, outcome: str, first: int | None = None) -> None:
    """Settle what an owner has at the start, or the first messages of it."""

    @operation(name, owner=owner)
    def steps(log: Log) -> Steps:
        lease, seqs = log.leases[owner]
        yield from settling(log, lease, seqs if outcome == "whole" else seqs[:first], outcome)


_acting("ack_ann", "ann", "whole")
_acting("ack_first", "ann", "ack", 1)
_acting("nack_ann", "ann", "retry", 1)
_acting("nack_later", "ann", "later", 1)
_acting("release_ann", "ann", "release")
_acting("reject_ann", "ann", "reject", 1)
_acting("ack_bob", "bob", "ack")
_acting("nack_bob", "bob", "retry")


def _acking(name: str, owner: str, first: int, last: int | None, *, at_commit: bool = False) -> None:
    """Ack messages that an owner has at the start, from the first to the last one of these places.

    `at_commit`: as if the server had got the COMMIT together with it.
    """

    @operation(name, *LOST, owner=owner)
    def steps(log: Log) -> Steps:
        lease, seqs = log.leases[owner]
        seqs = seqs[first - 1 : last]
        chosen = ", ".join(map(str, seqs))
        function, more = (
            ("ack_at_commit", ", p_xid => pg_current_xact_id()::text::bigint") if at_commit else ("ack_messages", "")
        )
        yield f"begin; insert into gate.effects select unnest(array[{chosen}]::bigint[])"
        yield (
            f"select headrace_internal.{function}(p_consumer => {SHIP}, p_leases => array[{', '.join([str(lease)] * len(seqs))}]::bigint[], "
            f"p_seqs => array[{chosen}]::bigint[], p_now => {at(0)}, p_timeline => null{more}); "
            "set local idle_in_transaction_session_timeout = 0"
        )
        yield "commit"
        log.acked += [(lease, seq) for seq in seqs]


_acking("effect_ann", "ann", 1, 1)
_acking("effect_second", "ann", 2, 2)
_acking("effects_ann", "ann", 1, 2)
_acking("effect_bob", "bob", 1, 1)
_acking("effects_at_commit_ann", "ann", 1, None, at_commit=True)


@operation("extend_bob", owner="bob")
def _extend(log: Log) -> Steps:
    yield f"select headrace_internal.extend_leases(p_consumer => {SHIP}, p_leases => '{{{log.leases['bob'][0]}}}', p_now => {at(0)})"


@operation("reclaim_ann", owner="ann")
def _reclaim(_: Log) -> Steps:
    yield f"select headrace_internal.reclaim(p_consumer => {SHIP}, p_owner => '{owner_id('ann')}', p_known => '{{}}')"
