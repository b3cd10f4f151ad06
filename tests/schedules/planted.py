"""Planted bugs: each one breaks a promise, or brings back a fault that was found once. The explorer must find them.

A bug is an exact replacement in the body of a function, or a statement. It is refused if the text is not found once. So
a change of the function needs a new text here. `plant` puts one into a database, for other tools, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.schedules.explore import Explorer, Outcome, Pair, pairs, prioritized, shrunk
from tests.schedules.schedules import Schedule


@dataclass(frozen=True)
class Bug:
    """A bug.

    Args:
        name: of the bug.
        promise: what it breaks.
        function: the function of headrace_internal that it changes. Empty for a statement.
        old, new: the text that is replaced, and what replaces it. Of a statement only `new`.
        state: the state in which it is looked for.
        operations: among these. All pairs of them are tried, with more and more preemptions.
    """

    name: str
    promise: str
    function: str
    old: str
    new: str
    state: str
    operations: tuple[str, ...]


def plant(bug: Bug, connection: psycopg.Connection[Any]) -> None:
    """Put a bug into a database, before its functions get gates. Raises `LookupError` if the function has another text."""
    if not bug.function:
        connection.execute(bug.new.encode())
        return
    rows = connection.execute(
        "select oid, prosrc from pg_proc where proname = %s and pronamespace = 'headrace_internal'::regnamespace",
        (bug.function,),
    ).fetchall()
    if len(rows) != 1:
        raise LookupError(f"the bug {bug.name!r} changes {bug.function}, of which there are {len(rows)}")
    ((oid, body),) = rows
    if body.count(bug.old) != 1:
        raise LookupError(
            f"the bug {bug.name!r} replaces {bug.old!r}, which is {body.count(bug.old)} times in {bug.function}"
        )
    connection.execute("update pg_proc set prosrc = %s where oid = %s", (body.replace(bug.old, bug.new), oid))


_ACKED = "(ended.lease_id, m.seq) not in (select * from headrace_internal.acked_messages({}, v_leases))"
_LEASES = ("lease_ann", "lease_bob", "lease_late", "lease_expired")
_PARKED = """
           (select seq from headrace_internal.first_blocking(p_consumer, v_cursor.blocked_floor) as seq)
        into v_parked.lowest, v_parked.blocked;
"""
_BUSY = """
    v_request.busy := (
        select array_agg(hash) from (select unnest(hashes) as hash, owner from headrace_internal.leases where consumer_id = p_consumer) as l
        where owner <> p_owner);
"""

BUGS = [
    Bug(
        "a late ack of a whole lease counts", "fenced settles", "settle_outcomes",
        "if cardinality(v_ended) is distinct from cardinality(p_whole) then", "if false then",
        "quiet", ("ack_ann", *_LEASES),
    ),
    Bug(
        "a late ack of a message counts", "fenced settles", "settle_outcomes",
        "where not exists (select from held as h where", "where false and not exists (select from held as h where",
        "quiet", ("ack_first", "nack_ann", *_LEASES),
    ),
    Bug(
        "a transactional ack without a lease commits", "exactly-once effects", "ack_at_commit",
        "if not found then", "if false then",
        "quiet", ("effect_ann", *_LEASES),
    ),
    Bug(
        "an ack in a transaction locks no lease", "exactly-once effects", "ack_at_commit",
        "for key share", "",
        "quiet", ("effect_ann", *_LEASES),
    ),
    Bug(
        "a whole lease is acked beside one of its messages", "exactly-once effects", "ack_whole",
        "order by lease_id for update", "order by lease_id",
        "quiet", ("effect_ann", "effects_at_commit_ann"),
    ),
    Bug(
        "a whole lease is acked after one of its messages", "exactly-once effects", "ack_whole",
        "and l.lease_id not in (select a.lease_id from headrace_internal.acked_messages(p_consumer, v_locked) as a)", "",
        "quiet", ("effect_ann", "effects_at_commit_ann"),
    ),
    Bug(
        "a whole lease is acked although one of the messages went back", "exactly-once effects", "ack_whole",
        "having count(*) = l.held and bool_and(", "having count(*) >= l.held and bool_or(",
        "quiet", ("nack_ann", "effects_at_commit_ann"),
    ),
    Bug(
        "expiry puts back what a transaction has acked", "exactly-once effects", "expire_leases",
        "and " + _ACKED.format("p_consumer.id"), "",
        "quiet", ("effect_ann", *_LEASES),
    ),
    Bug(
        "a nack puts back what a transaction has acked", "exactly-once effects", "settle_outcomes",
        "from held where outcome <> 'ack' and not acked;", "from held where outcome <> 'ack';",
        "quiet", ("effect_ann", "nack_ann", "release_ann"),
    ),
    Bug(
        "a nack does not wait for an ack that commits", "exactly-once effects", "settle_outcomes",
        "if v_back <> '{}' then", "if false then",
        "quiet", ("effect_ann", "nack_ann", "release_ann"),
    ),
    Bug(
        "a settle records what a transaction has recorded", "the history has each ack once", "settle_outcomes",
        "p_report, false, p_now)", "p_report, true, p_now)",
        "history", ("effect_ann", "ack_first"),
    ),
    Bug(
        "a whole lease records what a transaction has recorded", "the history has each ack once", "record_runs",
        "if exists (select from headrace_internal.acks", "if false and exists (select from headrace_internal.acks",
        "history", ("effect_ann", "ack_ann"),
    ),
    Bug(
        "leases that are taken back forget their acks", "exactly-once effects", "reclaim",
        "and " + _ACKED.format("p_consumer"), "",
        "quiet", ("effect_ann", "reclaim_ann"),
    ),
    Bug(
        "busy keys are read after parked messages", "order per key", "lease",
        _PARKED, _PARKED + _BUSY,
        "quiet", ("nack_ann", "release_ann", "late", "lease_bob"),
    ),
    Bug(
        "the short way passes keys that another owner holds", "order per key", "lease_fresh",
        "(owner <> p_owner or p_bounds.free_keys) and p_consumer.ordered", "false",
        "quiet", ("lease_ann", "lease_bob", "publish"),
    ),
    Bug(
        "unread messages pass parked ones of their key", "order per key", "read_ahead",
        "if p_request.parked or p_request.blocked then", "v_wanted.parked := false; v_wanted.blocked := false; if false then",
        "quiet", ("nack_later", "release_ann", "lease_bob"),
    ),
    Bug(
        "unread messages pass one that blocks their key", "order per key", "waiting_keys",
        "v_result.blocked := p_blocked and p_consumer.ordered;", "v_result.blocked := false;",
        "busy", ("publish_many", "lease_bob", "lease_ann"),
    ),
    Bug(
        "parked messages ignore busy keys", "order per key", "find_due_messages",
        "where not coalesce(k.key_hash in (select unnest(p_request.busy)), false)", "where true",
        "busy", ("lease_ann", "lease_bob", "lease_late"),
    ),
    Bug(
        "a late arrival does not go before a parked message", "order per key", "take_parked",
        "if p_parked.lowest is not null and p_consumer.ordered and p_search and not p_stream.one_message_per_key then", "if false then",
        "idle", ("late", "work_retry", "lease_bob"),
    ),
    Bug(
        "one lease of an owner expires alone", "order per key", "expire_leases",
        "where owner in (select owner from locked where expires_at <= p_now)", "where expires_at <= p_now",
        "spread", ("lease_late", "lease_late_bob", "ack_ann"),
    ),
    Bug(
        "shares get two messages of a key", "order per key", "lease_fresh",
        "v_state.busy, p_shares is not null);", "v_state.busy, false);",
        "idle", ("publish_many", "lease_shares", "lease_bob"),
    ),
    Bug(
        "lease calls do not take turns", "one delivery per visibility timeout", "lease",
        "if not pg_try_advisory_xact_lock(1212498508, p_consumer) and not headrace_internal.wait_for_consumer(p_consumer, p_wait) then", "if false then",
        "quiet", ("lease_bob", "lease_ann", "work"),
    ),
    Bug(
        "the newest of a key is leased beside the last one", "order per key", "live_leases",
        "and (owner is distinct from p_owner or p_stream.one_message_per_key)) as l;", "and owner is distinct from p_owner) as l;",
        "compacted", ("lease_ann", "lease_bob", "publish"),
    ),
    Bug(
        "missing seqs are no holes", "nothing is lost", "scan_usual",
        "if v_result.looked_at < v_result.position - p_position then", "if false then",
        "idle", ("late", "lease_bob", "work"),
    ),
    Bug(
        "holes are forgotten one call too early", "nothing is lost", "advance_cursor",
        "p_missing := case when v_new = '{}' then '{}' else p_missing end;", "p_missing := '{}';",
        "idle", ("late", "lease_bob", "work"),
    ),
    Bug(
        "a move to the end passes open transactions", "nothing is lost", "seek",
        "v_low := least(headrace_internal.lowest_open_seq(v_stream, v_next.position), v_next.position + 1);", "v_low := null;",
        "quiet", ("late", "seek_end", "lease_bob"),
    ),
    Bug(
        "a move back forgets what is parked below", "nothing is lost", "seek",
        "delete from headrace_internal.parked where consumer_id = p_consumer and seq > v_kept;",
        "delete from headrace_internal.parked where consumer_id = p_consumer;",
        "busy", ("seek_near", "nack_ann", "release_ann"),
    ),
    Bug(
        "trimming passes open transactions", "nothing is lost", "drop_undelivered",
        "if p_seqs is null then", "if true then",
        "old", ("late", "trim", "publish"),
    ),
    Bug(
        "a discarded letter leaves its key waiting", "no stall", "discard_chosen",
        "headrace_internal.promote_tails(p_consumer, v_keys, null, v_next.parked_floor)", "null::bigint",
        "busy", ("discard", "lease_bob"),
    ),
    Bug(
        "keys stay blocked after an edit", "no stall", "declare_consumer",
        "perform headrace_internal.free_waiting(consumer_id);", "null;",
        "busy", ("edit_unblock", "lease_bob"),
    ),
    Bug(
        "the floor of parked messages ignores leases", "no decay", "lease",
        "v_lowest := least(v_leases.lowest, v_due.lowest, v_fresh.seqs[1]);", "v_lowest := least(v_due.lowest, v_fresh.seqs[1]);",
        "quiet", ("nack_ann", "release_ann", "lease_bob", "publish"),
    ),
    Bug(
        "the floor of leases ignores older ones", "no decay", "lease",
        "v_cursor.lease_floor := coalesce(v_leases.floor, v_batch.lease_id, v_cursor.lease_floor);",
        "v_cursor.lease_floor := coalesce(v_batch.lease_id, v_leases.floor, v_cursor.lease_floor);",
        "busy", ("lease_ann", "lease_bob"),
    ),
    Bug(
        "a redriven letter lies below the floor", "no decay", "redrive_chosen",
        "v_next.parked_floor := least(v_redriven.first, v_cursor.parked_floor);", "v_next.parked_floor := v_cursor.parked_floor;",
        "dead", ("redrive", "lease_bob"),
    ),
    Bug(
        "two publishers take one unique key", "unique keys", "take_unique_key",
        "if found then\n                return true;\n            end if;\n        elsif", "return true;\n        elsif",
        "idle", ("publish_unique", "work"),
    ),
    Bug(
        "a message id counts once for each call", "message ids", "publish_with_options",
        "where m.published_at < v_now - v_stream.dedupe_window", "where true",
        "idle", ("publish_with_id", "work"),
    ),
    Bug(
        "a nack parks a message that is being erased", "erasure", "put_back",
        "perform headrace_internal.lock_out_erasures(p_stream.id);", "",
        "quiet", ("erase", "nack_ann", "release_ann"),
    ),
    Bug(
        "a nack parks a message that is being cancelled", "cancellation", "cancel_messages",
        "order by lease_id for key share;", "order by lease_id;",
        "quiet", ("cancel", "nack_ann", "nack_later"),
    ),
    Bug(
        "a cancelled message is read with the next ones", "cancellation", "lease",
        "v_consumer.condition := headrace_internal.unread_condition(v_consumer, v_cursor.position);", "null;",
        "quiet", ("cancel", "lease_ann"),
    ),
    Bug(
        "a paused consumer leases", "pause", "lease",
        "if v_consumer.paused_until > p_now then", "if false then",
        "paused", ("lease_bob", "pause"),
    ),
    Bug(
        "a deleted consumer leaves its cursor", "deletion", "end_consumer_use",
        "delete from headrace_internal.cursors where consumer_id = p_consumer;", "",
        "quiet", ("delete_consumer", "lease_bob"),
    ),
    Bug(
        "a replay locks the consumer's row first", "locks in one order", "", "",
        "alter table headrace_internal.replays add foreign key (consumer_id) references headrace_internal.consumers on delete cascade",
        "idle", ("replay", "delete_consumer", "lease_bob"),
    ),
]  # fmt: skip


@dataclass
class Found:
    """How a bug was found."""

    schedules: int
    schedule: Schedule | None
    violation: str
    seconds: float


def outcomes(one: Explorer, bug: Bug, seed: int) -> Iterator[Outcome]:
    """Run all pairs of the bug's operations with up to two preemptions, then random schedules."""
    explored = [Pair(one, pair) for pair in pairs(bug.operations)]
    for _ in range(3):
        for pair in explored:
            yield from pair.run()
    generator = random.Random(seed)
    while True:
        operations = tuple(generator.choices(bug.operations, k=generator.choice((2, 3, 3))))
        yield one.run(prioritized(one, operations, generator))


def find(one: Explorer, bug: Bug, seed: int, seconds: float) -> Found:
    """Look for a bug that is planted in the explorer's database."""
    begun = time.monotonic()
    for count, outcome in enumerate(outcomes(one, bug, seed), 1):
        spent = time.monotonic() - begun
        if outcome.violations and not outcome.stuck:
            return Found(count, shrunk(one, outcome.schedule), outcome.violations[0], spent)
        if spent > seconds:
            return Found(count, None, "", spent)
    raise AssertionError("the search has no end")
