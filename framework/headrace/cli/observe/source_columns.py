"""The columns of sources, and the actions on a source with their confirmations: pause, resume, cancel a
backfill, retry failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.columns import Column, bars, number, rate_of
from headrace.cli.observe.dialogs import Confirm
from headrace.cli.observe.figures import BAD, FAINT, GOOD, HELD, STRONG, WARN, bytes_of, lasting
from headrace.cli.observe.history import SourceLine, SourceState
from headrace.cli.output.notices import count
from headrace.cli.output.tables import printable

if TYPE_CHECKING:
    from headrace.cli.observe.observer import Observer
    from headrace.model.capture import BackfillInfo

STATES: dict[SourceState, tuple[str, str]] = {
    "": ("webhook", FAINT),
    "running": ("running", GOOD),
    "alarm": ("alarm", BAD),
    "starting": ("starting", FAINT),
    "new": ("new", FAINT),
    "waiting": ("waiting", WARN),
    "stopped": ("stopped", BAD),
    "paused": ("paused", HELD),
    "unattended": ("unattended", WARN),
}
"""The word and the colour of each state."""

# --- columns


def _bytes(count: int | None, style: str = "") -> Text:
    return Text("–", FAINT) if count is None else Text(bytes_of(count), style if count else FAINT)


def _backfill(line: SourceLine) -> Text:
    """The progress of the running backfill, and its remaining time."""
    if not line.backfills:
        return Text("")
    one = next((one for one in line.backfills if one.state == "running"), line.backfills[0])
    more = f" +{len(line.backfills) - 1}" if len(line.backfills) > 1 else ""
    return Text(progress(one) + more, GOOD if one.state == "running" else FAINT)


def progress(one: BackfillInfo) -> str:
    """The share and the remaining time of a backfill, if they are known."""
    if one.state != "running":
        return one.state
    share = "" if one.share is None else f"{one.share:.0%}"
    left = "" if one.seconds_left is None else lasting(one.seconds_left)
    return f"{share} {left}".strip() or "running"


def why(line: SourceLine) -> Text:
    """Why the source is not running and how to correct it, or what is wrong with its slot."""
    how = line.info.capture
    if how is None or line.state == "paused":
        return Text("")
    if line.state == "alarm" and how.facts is not None:
        return Text(printable(how.facts.alarm or ""), BAD)
    if line.state == "unattended" and how.reason is None:
        return Text("no process captures it: headrace serve does", WARN)
    mend = "" if how.mend is None else f" Mend it with: {how.mend}"
    style = WARN if line.state == "running" else STATES[line.state][1]  # such as running without one table
    return Text(printable(f"{how.reason or ''}{mend}".strip()), style)


SOURCES: Sequence[Column[SourceLine]] = (
    Column(label="source", width=12, most=40, needs=lambda s: cell_len(s.info.name), cell=lambda s, _: Text(printable(s.info.name), STRONG), by=lambda s: s.info.name),
    Column(label="stream", width=10, most=30, needs=lambda s: cell_len(s.info.stream), rank=2, cell=lambda s, _: s.info.stream, by=lambda s: s.info.stream),
    Column(label="state", width=10, cell=lambda s, _: Text(*STATES[s.state]), by=lambda s: STATES[s.state][0]),
    Column(label="chg/s", width=6, right=True, cell=lambda s, _: Text("") if s.info.capture is None else rate_of(s.rate), by=lambda s: s.rate or 0),
    Column(label="behind", width=7, right=True, cell=lambda s, _: Text("") if s.info.capture is None else _bytes(s.behind), by=lambda s: s.behind or 0),
    Column(label="WAL held", width=8, right=True, cell=lambda s, _: Text("") if s.info.capture is None else _bytes(s.held_back, BAD if s.state == "alarm" else ""), by=lambda s: s.held_back or 0),
    Column(label="fail", width=4, right=True, cell=lambda s, _: Text("") if s.info.capture is None else number(s.info.capture.failures, BAD),
           by=lambda s: 0 if s.info.capture is None else s.info.capture.failures),
    Column(label="backfill", width=8, most=12, cell=lambda s, _: _backfill(s)),
    Column(label="tables", width=10, most=40, rank=3, needs=lambda s: cell_len(", ".join(s.tables)), cell=lambda s, _: Text(printable(", ".join(s.tables)), FAINT)),
    Column(label="lately", width=8, most=30, rank=4, cell=lambda s, width: Text("") if s.info.capture is None else bars(s.rates, width, GOOD)),
    Column(label="why", width=16, most=160, rank=1, needs=lambda s: cell_len(why(s).plain), cell=lambda s, _: why(s)),
)  # fmt: skip


# --- what the keys do


async def _confirmed(observer: Observer, title: str, text: str, yes: str) -> bool:
    return await observer.push_screen_wait(Confirm(title, text, yes))


async def pause(observer: Observer, line: SourceLine) -> bool:
    """Pause the source, or resume it if it is paused, after a confirmation. Returns whether anything was changed."""
    name, how = line.info.name, line.info.capture
    if how is None:
        observer.notify(f"{name} is a webhook source: only those that capture tables can be paused.")
        return False
    if line.state == "paused":
        text = f"{name} is captured again, from where it was paused: nothing that was committed meanwhile is left out."
        if not await _confirmed(observer, "Resume", text, "Resume"):
            return False
        return await observer.attempt(observer.admin.resume_source(name), f"{name} goes on.")
    text = (
        f"Nobody captures {name} until somebody resumes it. Meanwhile the captured server keeps all WAL that is still to be captured:"
        " its disk can fill, or with max_slot_wal_keep_size the slot can be lost."
    )
    if line.backfills:
        text += f" {count(len(line.backfills), 'backfill')} wait until then, too."
    if not await _confirmed(observer, "Pause", text, "Pause"):
        return False
    return await observer.attempt(observer.admin.pause_source(name), f"{name} is paused.")


async def cancel(observer: Observer, line: SourceLine, one: BackfillInfo | None = None) -> bool:
    """Cancel one backfill or all of the source, after a confirmation. Returns whether anything was changed."""
    name = line.info.name
    if one is not None and one.state not in ("queued", "running"):
        observer.notify(f"The backfill of {one.table} is {one.state} already.")
        return False
    found = line.backfills if one is None else [one]
    if not found:
        observer.notify(f"No backfill of {name} waits or is under way.")
        return False
    told = ", ".join(f"{one.table} ({one.read:,} rows read)" for one in found)
    text = (
        f"No more rows are read of {told}. What was read stays in the stream, and changes are captured as before."
        " To have the rest, a new backfill begins at the first row again."
    )
    if not await _confirmed(observer, "Cancel the backfill", text, "Cancel it"):
        return False
    call = observer.admin.cancel_backfills(name, None if one is None else one.id)
    return await observer.attempt(call, _told_of_cancelling)


async def retry(observer: Observer, line: SourceLine, ids: Sequence[int] | None) -> bool:
    """Retry all or the given failed changes, after a confirmation. Returns whether anything was changed."""
    name, how = line.info.name, line.info.capture
    if how is None or not how.failures:
        observer.notify(f"{name} has no changes that failed.")
        return False
    what = f"All {count(how.failures, 'change')} that failed are" if ids is None else f"The failed change {ids[0]} is"
    text = f"{what} tried again by whoever captures {name}. What succeeds is published now, so after newer changes of its key."
    if not await _confirmed(observer, "Retry", text, "Retry"):
        return False
    call = observer.admin.retry_failures(name, ids)
    return await observer.attempt(call, lambda tried: f"{count(tried, 'change')} will be tried again.")


def _told_of_cancelling(cancelled: int) -> str:
    return f"{count(cancelled, 'backfill')} cancelled." if cancelled else "It had ended already."
