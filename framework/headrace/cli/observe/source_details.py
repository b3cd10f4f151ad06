"""The full details of a source, of a backfill, and of a failed change, which could not be made into a message."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.text import Text

from headrace.cli.observe.details import lines_of, of_json, part
from headrace.cli.observe.figures import BAD, FAINT, STRONG, WARN, bytes_of, lasting, pace
from headrace.cli.observe.history import SourceLine
from headrace.cli.observe.source_columns import STATES
from headrace.cli.options.times import in_utc
from headrace.cli.output.tables import printable
from headrace.model.capture import BackfillInfo, CaptureFacts, CaptureInfo, FailedChange

_SLOT = {"reserved": "", "extended": "", "unreserved": BAD, "lost": BAD}


def about_source(line: SourceLine, now: datetime) -> Text:
    """The source's state, the reason why it is not running, and its settings."""
    text = Text()
    info, how = line.info, line.info.capture
    _fact(text, "source", f"{info.name}, {info.kind}", STRONG)
    _fact(text, "stream", info.stream)
    if how is not None:
        _of_capture(text, line, how, now)
    settings = {name: value for name, value in info.settings.items() if value not in (None, [], {}, "")}
    part(text, "settings", of_json(settings))
    return text


def _of_capture(text: Text, line: SourceLine, how: CaptureInfo, now: datetime) -> None:
    """Problems come first, because there may be room for a few lines only."""
    word, style = STATES[line.state]
    since = {"paused": how.paused_at, "unattended": how.told_at}.get(how.state, how.since)
    _fact(text, "state", word + ("" if since is None else f", for {lasting(_passed(since, now))}"), style)
    if line.state != "paused":
        _of_trouble(text, how, WARN if how.state == "running" else style)
    facts = Text()
    for name, value, colour in _of_progress(line, how, now):
        if value:
            _fact(facts, name, value, colour)
    facts.rstrip()
    part(text, "capture", facts)


def _of_trouble(text: Text, how: CaptureInfo, style: str) -> None:
    """The reason why it is not running, or not with all tables, and how to correct it."""
    if how.reason:
        part(text, "why", lines_of(how.reason), style)
    if how.mend:
        part(text, "mend it with", lines_of(how.mend))
    if how.facts is not None and how.facts.alarm:
        part(text, "alarm", lines_of(how.facts.alarm), BAD)


def _of_progress(line: SourceLine, how: CaptureInfo, now: datetime) -> Iterable[tuple[str, str, str]]:
    yield "captured", f"{how.captured:,} changes, {pace(line.rate) or '–'}/s", ""
    yield "failed", f"{how.failures:,}" if how.failures else "", BAD
    yield "position", how.position or "", ""
    yield "server", "" if how.system_id is None else f"{how.system_id}, timeline {how.timeline}", ""
    yield "by", how.holder or "", ""
    if how.facts is not None:
        yield from _of_slot(how.facts, now)
        if how.told_at is not None and how.state != "running":
            yield "told", f"{lasting(_passed(how.told_at, now))} ago", FAINT


def _of_slot(facts: CaptureFacts, now: datetime) -> Iterable[tuple[str, str, str]]:
    if facts.committed_at is not None:
        yield "newest", f"committed {lasting(_passed(facts.committed_at, now))} ago", ""
    if facts.behind is not None:
        yield "behind", f"{bytes_of(facts.behind)} of WAL", ""
    if facts.held_back is not None:
        yield "held back", f"{bytes_of(facts.held_back)} of WAL, by the slot", ""
    if facts.wal_status is not None:
        safe = (
            "no max_slot_wal_keep_size"
            if facts.safe_wal_size is None
            else f"{bytes_of(max(facts.safe_wal_size, 0))} to its limit"
        )
        yield "slot", f"{facts.wal_status}, {safe}", _SLOT.get(facts.wal_status, "")


def about_backfill(one: BackfillInfo) -> Text:
    """The full details of a backfill."""
    text = Text()
    took = (
        None if one.started_at is None or one.updated_at is None else (one.updated_at - one.started_at).total_seconds()
    )
    facts = {
        "table": one.table, "state": one.state, "why": one.reason or "", "id": one.id,
        "read": f"{one.read:,} rows" + ("" if one.total is None else f" of {one.total:,}, as estimated"),
        "published": f"{one.published:,}, without those of which a newer change was captured",
        "share": "" if one.share is None else f"{one.share:.0%}",
        "pace": "" if not took else f"{pace(one.read / took)} rows/s" + ("" if one.rate is None else f", {one.rate:,} at most"),
        "left": "" if one.seconds_left is None else lasting(one.seconds_left),
        "asked for": in_utc(one.created_at), "began": "" if one.started_at is None else in_utc(one.started_at),
        "ended": "" if one.finished_at is None else in_utc(one.finished_at),
    }  # fmt: skip
    for name, value in facts.items():
        if value:
            _fact(text, name, value, BAD if name == "why" else "")
    if one.where is not None:
        part(text, "where", of_json(one.where))
    return text


def about_failure(failed: FailedChange) -> Text:
    """The full details of a change that could not be made into a message."""
    text = Text()
    _fact(text, "key", failed.key or "none", STRONG)
    _fact(
        text,
        "failed",
        in_utc(failed.failed_at) + ("" if failed.attempts == 1 else f", and {failed.attempts:,} times by now"),
    )
    if failed.retry:
        _fact(text, "state", "about to be tried again")
    part(text, "error", lines_of(failed.error), BAD)
    part(text, "data", of_json(failed.data))
    return text


def _passed(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _fact(text: Text, name: str, value: str, style: str = "") -> None:
    text.append(f"{name:<10}", FAINT).append(f"{printable(value)}\n", style)
