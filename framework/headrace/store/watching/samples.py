"""Samples: store, compact, delete and read them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headrace.model.watching.samples import EVERY, TIERS, Chart, SampleKind, Series
from headrace.store.database.database import Executor

KINDS: dict[SampleKind, int] = {"total": 0, "stream": 1, "consumer": 2}
"""The kinds of objects as they are stored."""

BATCH = 10_000
"""The most samples that one call merges or deletes."""

LEVELS = ("lag", "lag_seconds", "in_flight", "parked", "blocked", "dead_letters")


class Sample(msgspec.Struct, frozen=True, kw_only=True, rename={"number": "object_id"}):
    """A sample of an object, by its number in the database, which is 0 for all together. None stands for unknown."""

    kind: int
    number: int
    published: int | None = None
    finished: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    in_flight: int | None = None
    parked: int | None = None
    blocked: int | None = None
    dead_letters: int | None = None


async def record_samples(executor: Executor, at: datetime, samples: Sequence[Sample]) -> None:
    """Store samples of one moment."""
    rows = msgspec.json.encode(samples).decode()
    await executor.fetchval("select headrace_internal.record_samples($1, $2, $3)", at, EVERY, rows)


async def compact_samples(executor: Executor, *, now: datetime | None = None) -> bool:
    """Merge samples that are too old for their tier into the next one, and delete what is beyond the last one or too
    much. Returns whether there may be more to do."""
    more = False
    for tier, coarser in itertools.pairwise(TIERS):
        arguments = (tier.step, coarser.step, timedelta(seconds=tier.kept), BATCH, now)
        merged = await executor.fetchval(
            "select headrace_internal.compact_samples($1, $2, $3, $4, coalesce($5, clock_timestamp()))", *arguments
        )
        more |= merged >= BATCH
    for tier in TIERS:
        # What is still to be merged is not too old, but there may be too much of it.
        kept = tier.kept if tier is TIERS[-1] else 2 * tier.kept
        limits = (tier.step, timedelta(seconds=kept), tier.rows, BATCH, now)
        deleted = await executor.fetchval(
            "select headrace_internal.delete_old_samples($1, $2, $3, $4, coalesce($5, clock_timestamp()))", *limits
        )
        more |= deleted >= BATCH
    return more


async def chart(
    executor: Executor, kind: SampleKind, number: int, since: datetime, until: datetime, points: int, *, now: datetime
) -> Chart:
    """Read the samples of an object in at most `points` intervals. An interval in which an object did not change has the
    levels before it, and the rates 0. One in which no samples were taken has None."""
    step = step_of(since, until, points, now)
    since = datetime.fromtimestamp(since.timestamp() // step * step, UTC)
    arguments = (KINDS[kind], number, since, until, timedelta(seconds=step))
    rows = await executor.fetch("select * from headrace_internal.sample_bins($1, $2, $3, $4, $5)", *arguments)
    bins = {row["bin"]: row for row in rows}
    count = max(math.ceil((until - since).total_seconds() / step), 1)
    series: dict[str, list[float | None]] = {name: [] for name in Series.__struct_fields__}
    level = bins.get(-1)
    for place in range(count):
        row = bins.get(place)
        if row is not None and any(row[name] is not None for name in LEVELS):
            level = row
        _append(series, row, level, step)
    start = since.timestamp()
    return Chart(at=[start + place * step for place in range(count)], step=step, series=Series(**series))


def step_of(since: datetime, until: datetime, points: int, now: datetime) -> float:
    """The length of an interval in seconds. It is at least that of the samples that are left of the first interval."""
    age = (now - since).total_seconds()
    finest = next((tier.step for tier in TIERS if age <= tier.kept), TIERS[-1].step)
    wanted = max((until - since).total_seconds() / max(points - 1, 1), finest)
    for step in (10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400):
        if step >= wanted:
            return float(step)
    return float(math.ceil(wanted / 86_400) * 86_400)


def _append(series: dict[str, list[float | None]], row: Any, level: Any, step: float) -> None:
    known = row is not None and row["taken"]
    for name, column in (("publish_rate", "published"), ("finish_rate", "finished")):
        counted = None if row is None else row[column]
        unchanged = known and row is not level  # no sample of its own, while others were taken
        series[name].append(counted / step if counted is not None else 0.0 if unchanged else None)
    for name in LEVELS:
        series[name].append(None if level is None or not (known or row is level) else level[name])
