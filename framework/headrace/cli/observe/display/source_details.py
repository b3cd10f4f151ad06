"""The full details of a source, of a backfill, and of a failed change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, STRONG
from headrace.cli.observe.display.formats import format_bytes, format_rate
from headrace.cli.observe.display.message_details import add_section, json_text, multiline_text
from headrace.cli.observe.display.source_columns import SOURCE_STATES
from headrace.cli.options.times import in_utc, roughly
from headrace.model.capture import BackfillInfo, CaptureFacts, CaptureInfo, FailedChange
from headrace.model.text.printing import printable
from headrace.model.watching.live import SourceRow

_SLOT_COLORS = {"reserved": "", "extended": "", "unreserved": BAD, "lost": BAD}


def source_details(row: SourceRow, now: datetime) -> Text:
    """Return the source's state, the reason why it is not running, and its settings."""
    text = Text()
    info, capture = row.info, row.info.capture
    _add_fact(text, "source", f"{info.name}, {info.kind}", STRONG)
    _add_fact(text, "stream", info.stream)
    if capture is not None:
        _add_capture(text, row, capture, now)
    settings = {name: value for name, value in info.settings.items() if value not in (None, [], {}, "")}
    add_section(text, "settings", json_text(settings))
    return text


def _add_capture(text: Text, row: SourceRow, capture: CaptureInfo, now: datetime) -> None:
    """Add the state of the capture. Problems come first, because there may be room for a few lines only."""
    word, style = SOURCE_STATES[row.state]
    since = {"paused": capture.paused_at, "unattended": capture.told_at}.get(capture.state, capture.since)
    _add_fact(text, "state", word + ("" if since is None else f", for {roughly(_seconds_since(since, now))}"), style)
    if row.state != "paused":
        _add_problems(text, capture, style)
    facts = Text()
    for name, value, colour in _progress_facts(row, capture, now):
        if value:
            _add_fact(facts, name, value, colour)
    facts.rstrip()
    add_section(text, "capture", facts)


def _add_problems(text: Text, capture: CaptureInfo, style: str) -> None:
    """Add the reason why it is not running, or not with all tables, and how to correct it."""
    if capture.reason:
        add_section(text, "reason", multiline_text(capture.reason), style)
    if capture.mend:
        add_section(text, "to fix it", multiline_text(capture.mend))
    if capture.facts is not None and capture.facts.alarm:
        add_section(text, "alarm", multiline_text(capture.facts.alarm), BAD)


def _progress_facts(row: SourceRow, capture: CaptureInfo, now: datetime) -> Iterable[tuple[str, str, str]]:
    yield "captured", f"{capture.captured:,} changes, {format_rate(row.changes_rate) or '–'}/s", ""
    yield "failed", f"{capture.failures:,}" if capture.failures else "", BAD
    yield "position", capture.position or "", ""
    yield "server", "" if capture.system_id is None else f"{capture.system_id}, timeline {capture.timeline}", ""
    yield "captured by", capture.holder or "", ""
    if capture.facts is not None:
        yield from _slot_facts(capture.facts, now)
        if capture.told_at is not None and capture.state != "running":
            yield "reported", f"{roughly(_seconds_since(capture.told_at, now))} ago", FAINT


def _slot_facts(facts: CaptureFacts, now: datetime) -> Iterable[tuple[str, str, str]]:
    if facts.committed_at is not None:
        yield "last change", f"committed {roughly(_seconds_since(facts.committed_at, now))} ago", ""
    if facts.behind is not None:
        yield "behind", f"{format_bytes(facts.behind)} of WAL", ""
    if facts.held_back is not None:
        yield "held back", f"{format_bytes(facts.held_back)} of WAL, for the slot", ""
    if facts.wal_status is not None:
        safe = (
            "no max_slot_wal_keep_size"
            if facts.safe_wal_size is None
            else f"lost after {format_bytes(max(facts.safe_wal_size, 0))} more of WAL"
        )
        yield "slot", f"{facts.wal_status}, {safe}", _SLOT_COLORS.get(facts.wal_status, "")


def backfill_details(backfill: BackfillInfo) -> Text:
    """Return the full details of a backfill."""
    text = Text()
    took = (
        None
        if backfill.started_at is None or backfill.updated_at is None
        else (backfill.updated_at - backfill.started_at).total_seconds()
    )
    facts = {
        "table": backfill.table, "state": backfill.state, "reason": backfill.reason or "", "id": backfill.id,
        "read": f"{backfill.read:,} rows" + ("" if backfill.total is None else f" of an estimated {backfill.total:,}"),
        "published": f"{backfill.published:,} messages, without rows that have a newer captured change",
        "share": "" if backfill.share is None else f"{backfill.share:.0%}",
        "rate": "" if not took else f"{format_rate(backfill.read / took)} rows/s" + ("" if backfill.rate is None else f", limited to {backfill.rate:,}"),
        "left": "" if backfill.seconds_left is None else roughly(backfill.seconds_left),
        "created": in_utc(backfill.created_at), "started": "" if backfill.started_at is None else in_utc(backfill.started_at),
        "ended": "" if backfill.finished_at is None else in_utc(backfill.finished_at),
    }  # fmt: skip
    for name, value in facts.items():
        if value:
            _add_fact(text, name, value, BAD if name == "reason" else "")
    if backfill.where is not None:
        add_section(text, "where", json_text(backfill.where))
    return text


def failure_details(failed: FailedChange) -> Text:
    """Return the full details of a change that could not become a message."""
    text = Text()
    _add_fact(text, "key", failed.key or "none", STRONG)
    _add_fact(
        text,
        "failed",
        in_utc(failed.failed_at) + ("" if failed.attempts == 1 else f", after {failed.attempts:,} attempts"),
    )
    if failed.retry:
        _add_fact(text, "state", "will be retried")
    add_section(text, "error", multiline_text(failed.error), BAD)
    add_section(text, "data", json_text(failed.data))
    return text


def _seconds_since(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _add_fact(text: Text, name: str, value: str, style: str = "") -> None:
    text.append(f"{name:<12}", FAINT).append(f"{printable(value)}\n", style)
