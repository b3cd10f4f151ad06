"""Metrics of capturing sources and their backfills, from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import time
from typing import get_args

from headrace.model.capture import BackfillInfo, CaptureInfo, CaptureState
from headrace.model.sources import SourceInfo
from headrace.server.monitoring.prometheus import Labels, Sample

Family = tuple[str, str, str, list[Sample]]

Read = Callable[[CaptureInfo], float | None]


def capture_metrics(sources: Iterable[SourceInfo]) -> Iterator[Family]:
    """Return the metric families of captures."""
    found = [
        ((("source", one.name), ("stream", one.stream)), one.capture) for one in sources if one.capture is not None
    ]
    if not found:
        return
    states: list[Sample] = [
        ("", (*labels, ("state", state)), float(capture.state == state))
        for labels, capture in found
        for state in get_args(CaptureState)
    ]
    yield "headrace_source_state", "gauge", "1 for the current state of the capture, 0 for the others.", states
    for name, kind, about, read in _FAMILIES:
        yield f"headrace_source_{name}", kind, about, list(_read(found, read))


def _read(found: Iterable[tuple[Labels, CaptureInfo]], read: Read) -> Iterator[Sample]:
    """Yield samples of the known values."""
    for labels, capture in found:
        value = read(capture)
        if value is not None:
            yield "", labels, value


def _reported(field: str) -> Read:
    """Return a reader of a field that the capturing process reports. Its value is None unless the capture runs."""
    return lambda capture: (
        None if capture.facts is None or capture.state != "running" else getattr(capture.facts, field)
    )


def _alarm(capture: CaptureInfo) -> float:
    return float(capture.facts is not None and capture.facts.alarm is not None)


def _age(capture: CaptureInfo) -> float | None:
    at = None if capture.facts is None else capture.facts.committed_at
    return None if at is None else max(0.0, time() - at.timestamp())


_FAMILIES: tuple[tuple[str, str, str, Read], ...] = (
    ("captured_total", "counter", "Number of changes captured since the source was created.", lambda capture: capture.captured),
    ("rate", "gauge", "Number of changes captured per second, averaged over a few seconds.", _reported("rate")),
    ("behind_bytes", "gauge", "Size of the written WAL that is not captured yet, in bytes.", _reported("behind")),
    ("newest_seconds", "gauge", "Age of the newest captured transaction, in seconds since its commit.", _age),
    ("held_back_bytes", "gauge", "Size of the WAL that the captured server keeps for the slot, in bytes.", _reported("held_back")),
    ("safe_wal_bytes", "gauge", "Size of the WAL that can be written before the slot is lost, in bytes, where max_slot_wal_keep_size is set.",
     _reported("safe_wal_size")),
    ("alarm", "gauge", "1 while the slot has a problem, otherwise 0.", _alarm),
    ("failures", "gauge", "Number of changes that could not be converted to messages, counted up to 10,000.", lambda capture: capture.failures),
)  # fmt: skip


def backfill_metrics(backfills: Iterable[BackfillInfo]) -> Iterator[Family]:
    """Return the metric families of waiting and running backfills."""
    found: list[tuple[Labels, BackfillInfo]] = [
        ((("source", one.source), ("table", one.table)), one) for one in backfills
    ]
    if not found:
        return
    read: list[Sample] = [("", labels, one.read) for labels, one in found]
    yield "headrace_backfill_rows_read", "gauge", "Number of rows that a running backfill has read.", read
    about = "Number of rows that a backfill has to read, as estimated at its start."
    total: list[Sample] = [("", labels, one.total) for labels, one in found if one.total is not None]
    yield "headrace_backfill_rows", "gauge", about, total
