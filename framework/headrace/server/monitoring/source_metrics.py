"""Metrics of capturing sources and their backfills, from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import time
from typing import get_args

from headrace.model.capture import BackfillInfo, CaptureInfo, CaptureState
from headrace.model.sources import SourceInfo
from headrace.server.monitoring.metrics import Labels, Sample

Family = tuple[str, str, str, list[Sample]]

Read = Callable[[CaptureInfo], float | None]


def of_sources(sources: Iterable[SourceInfo]) -> Iterator[Family]:
    """Return the metric families of captures."""
    found = [
        ((("source", one.name), ("stream", one.stream)), one.capture) for one in sources if one.capture is not None
    ]
    if not found:
        return
    yield "headrace_source_state", "gauge", "1 for the state that the capture is in.", [
        ("", (*labels, ("state", state)), float(how.state == state))
        for labels, how in found
        for state in get_args(CaptureState)
    ]  # fmt: skip
    for name, kind, about, read in _FAMILIES:
        yield f"headrace_source_{name}", kind, about, list(_read(found, read))


def _read(found: Iterable[tuple[Labels, CaptureInfo]], read: Read) -> Iterator[Sample]:
    """Yield samples of the known values."""
    for labels, how in found:
        value = read(how)
        if value is not None:
            yield "", labels, value


def _told(field: str) -> Read:
    """Return a reader of a field that the capturing process reports. Its value is None unless the capture runs."""
    return lambda how: None if how.facts is None or how.state != "running" else getattr(how.facts, field)


def _alarm(how: CaptureInfo) -> float:
    return float(how.facts is not None and how.facts.alarm is not None)


def _age(how: CaptureInfo) -> float | None:
    at = None if how.facts is None else how.facts.committed_at
    return None if at is None else max(0.0, time() - at.timestamp())


_FAMILIES: tuple[tuple[str, str, str, Read], ...] = (
    ("captured_total", "counter", "Changes captured since the source was made.", lambda how: how.captured),
    ("rate", "gauge", "Changes captured a second, over the last few seconds.", _told("rate")),
    ("behind_bytes", "gauge", "Bytes of WAL between what the captured server has written and what is captured.", _told("behind")),
    ("newest_seconds", "gauge", "Seconds since the newest captured transaction was committed.", _age),
    ("held_back_bytes", "gauge", "Bytes of WAL that the captured server keeps for the slot.", _told("held_back")),
    ("safe_wal_bytes", "gauge", "Bytes of WAL that may still be written before the slot is lost, where max_slot_wal_keep_size is set.",
     _told("safe_wal_size")),
    ("alarm", "gauge", "1 while something is wrong with the slot.", _alarm),
    ("failures", "gauge", "Changes that could not be made into messages; 10,000 at most are counted.", lambda how: how.failures),
)  # fmt: skip


def of_backfills(backfills: Iterable[BackfillInfo]) -> Iterator[Family]:
    """Return the metric families of waiting and running backfills."""
    found: list[tuple[Labels, BackfillInfo]] = [
        ((("source", one.source), ("table", one.table)), one) for one in backfills
    ]
    if not found:
        return
    yield "headrace_backfill_rows_read", "gauge", "Rows read by a backfill that is under way.", [
        ("", labels, one.read) for labels, one in found
    ]  # fmt: skip
    yield "headrace_backfill_rows", "gauge", "Rows that it has to read, as estimated at its start.", [
        ("", labels, one.total) for labels, one in found if one.total is not None
    ]  # fmt: skip
