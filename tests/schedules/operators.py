"""The operations of operators and of maintenance. With these, `OPERATIONS` is complete."""

from __future__ import annotations

from collections.abc import Callable

from tests.schedules.log import Log, State
from tests.schedules.operations import OPERATIONS, ORDERS, REPLACED, SHIP, Steps, at, operation, settling
from tests.schedules.sessions import Failed, Rows

__all__ = ["OPERATIONS"]


def _operating(
    name: str, sql: str, *, rewinds: bool = False, settles: Callable[[Log, State, Rows], set[int]] | None = None
) -> None:
    @operation(name)
    def steps(log: Log) -> Steps:
        before = log.state() or log.initial
        log.rewound = log.rewound or rewinds
        rows, *_ = yield sql
        if settles:
            log.settled |= settles(log, before, rows)


def _discarded(log: Log, before: State, _: Rows) -> set[int]:
    return {letter[0] for letter in before["dead"]} | {seq for _, seq in log.put_back}


def _passed_over(log: Log, _: State, rows: Rows) -> set[int]:
    """A move to the end may count as done at any moment of its call."""
    return {seq for seq in log.messages() if seq <= int(rows[0][0] or 0)}


def _seeking(name: str, position: int) -> None:
    @operation(name)
    def steps(log: Log) -> Steps:
        before, known = log.state() or log.initial, len(log.moves)
        log.rewound = True
        rows, *_ = yield f"select headrace_internal.seek(p_consumer => {SHIP}, p_position => {position})"
        moved = int(rows[0][0] or 0)
        if before["cursor"] and min(before["cursor"]["position"], *log.moves, moved) < moved:
            log.forward = max(log.forward, moved)
        # Calls that were under way at the same time may have moved it after this one, whichever answer was read first.
        log.forward = max(log.forward, *(one for one in log.moves[known:] if one > moved), 0)
        log.moves.append(moved)


_seeking("seek_start", 0)
_seeking("seek_back", 2)
_seeking("seek_near", 3)
_operating(
    "seek_end",
    f"select headrace_internal.seek(p_consumer => {SHIP}, p_position => null)",
    rewinds=True,
    settles=_passed_over,
)
_operating(
    "replay",
    f"""select headrace_internal.replay(p_consumer => {SHIP}, p_selection => '{{"start_seq": 1, "end_seq": 4}}', p_dry_run => false)""",
    rewinds=True,
)
_operating("redrive", f"select headrace_internal.redrive_chosen(p_consumer => {SHIP})", rewinds=True)
_operating("discard", f"select headrace_internal.discard_chosen(p_consumer => {SHIP})", settles=_discarded)
_operating("pause", f"select headrace_internal.pause(p_consumer => {SHIP}, p_until => null)")
_operating("resume", f"select headrace_internal.resume(p_consumer => {SHIP})")


def _editing(name: str, settings: str) -> None:
    @operation(name)
    def steps(log: Log) -> Steps:
        try:
            yield (
                "select headrace_internal.declare_consumer("
                f"p_stream => 'orders', p_name => 'ship', p_settings => '{settings}')"
            )
        except Failed as failed:
            # A consumer that was deleted is declared as a new one, which needs all of its settings.
            if failed.state != "HR004" or not {"delete_consumer", "delete_stream"} & log.operations:
                raise


_editing("edit_unblock", '{"on_exhausted": "dead_letter"}')
_editing("edit_unordered", '{"ordered": false}')
_editing("edit_ack_wait", '{"ack_wait": "5 s"}')


@operation("edit_retention")
def _edit_retention(log: Log) -> Steps:
    """Keep from now on what the stream has."""
    yield """select headrace_internal.edit_stream(p_name => 'orders', p_settings => '{"retain_up_to": null}')"""
    state = log.state()
    if state is not None and not state["compacted"]:
        log.kept |= {seq for seq, *_ in state["messages"]}


@operation("erase")
def _erase(log: Log) -> Steps:
    """Erase one message that is in flight, and one that is not."""
    yield "select headrace_internal.erase_messages(p_stream => 'orders', p_seqs => '{1,4}', p_by => 'me', p_reason => null)"
    yield f"select headrace_internal.forget_erased(p_consumer => {SHIP}, p_seqs => '{{1,4}}')"
    log.erased = {1, 4}


@operation("unschedule")
def _unschedule(log: Log) -> Steps:
    """Remove what is scheduled, before it is due."""
    try:
        rows = yield "select headrace_internal.unschedule(p_stream => 'orders')"
    except Failed:
        log.removes = True  # perhaps it has committed
        raise
    log.published -= int(rows[0][0][0] or 0)


def _cancelling(seqs: str) -> str:
    return f"select headrace_internal.cancel_messages(p_consumer => {SHIP}, p_seqs => '{{{seqs}}}', p_by => 'me', p_now => {at(0)})"


@operation("cancel")
def _cancel(_: Log) -> Steps:
    """Cancel one message that is in flight, and one that is not."""
    yield _cancelling("1,4")


@operation("cancel_all")
def _cancel_all(_: Log) -> Steps:
    yield _cancelling("1,2,3,4,5,6,7,8,9,10,11,12")


@operation("cancel_key")
def _cancel_key(_: Log) -> Steps:
    above, until = 0, "null"
    while until == "null" or above < int(until):
        rows = yield (
            f"select reached, until from headrace_internal.cancel_key(p_consumer => {SHIP}, p_key => 'a', p_above => {above}, "
            f"p_until => {until}, p_by => 'me', p_scan_limit => 2, p_now => {at(0)})"
        )
        above, until = int(rows[0][0][0] or 0), rows[0][0][1] or "0"


@operation("stop_ann", owner="ann")
def _stop(log: Log) -> Steps:
    """Cancel a message, whose handler then ends."""
    lease, seqs = log.leases["ann"]
    yield _cancelling(str(seqs[0]))
    yield from settling(log, lease, seqs[:1], "cancel")


@operation("trim")
def _trim(log: Log) -> Steps:
    """Remove all that has committed, in a stream that keeps nothing for a year."""
    log.removes = True
    log.settled |= log.messages()
    yield f"select headrace_internal.trim_stream(p_stream => {ORDERS}, p_now => {at(31536000)})"


@operation("drop_segments")
def _drop_segments(log: Log) -> Steps:
    """Drop all segments that are full, in a stream that keeps nothing for a year."""
    log.removes = True
    log.settled |= log.messages()
    yield f"select headrace_internal.drop_segments(p_stream => {ORDERS}, p_lock_timeout => 30000, p_now => {at(31536000)})"


@operation("forget_unique")
def _forget_unique(_: Log) -> Steps:
    yield f"select headrace_internal.delete_done_unique_keys(p_stream => {ORDERS})"


@operation("delete_consumer")
def _delete_consumer(log: Log) -> Steps:
    """Delete the consumer and make it again. Calls for the old one fail, and the new one begins at the start."""
    log.rewound = True
    yield f"select headrace_internal.delete_consumer(p_consumer => {SHIP}, p_force => true, p_now => {at(0)})"
    yield "select headrace_internal.declare_consumer(p_stream => 'orders', p_name => 'ship', p_settings => (select settings from gate.settings))"


@operation("delete_stream", "HR001", "HR006", elsewhere={"HR001", *REPLACED})
def _delete_stream(log: Log) -> Steps:
    """Delete the stream, and make it and its consumer again. Calls for the old ones fail, and messages of the old one are gone."""
    log.rewound = log.removes = True
    yield f"select headrace_internal.delete_stream(p_stream => 'orders', p_force => true, p_now => {at(0)})"
    log.kept.clear()
    yield "select headrace_internal.declare_stream(p_name => 'orders', p_settings => (select policy from gate.settings))"
    yield "select headrace_internal.declare_consumer(p_stream => 'orders', p_name => 'ship', p_settings => (select settings from gate.settings))"


@operation("migrate", elsewhere=REPLACED)  # as an upgrade that changes no table
def _migrate(_: Log) -> Steps:
    yield "select gate.reinstall()"
