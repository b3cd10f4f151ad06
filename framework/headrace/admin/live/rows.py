"""Makes the rows of figures: of streams, consumers, processes and sources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from msgspec import Struct

from headrace.admin.live.reading import ConsumerFigures, StreamFigures
from headrace.flow.diagnosis import Situation, diagnose
from headrace.flow.observed import Samples, at_work, consumer_state, source_reason, source_state
from headrace.model.capture import Backfill, BackfillInfo
from headrace.model.records import ConsumerAtWork, WorkerInfo
from headrace.model.sources import SourceInfo
from headrace.model.watching.live import ConsumerRow, ProcessRow, SourceRow, StreamRow
from headrace.model.watching.processes import process_name
from headrace.store import CatalogConsumer, CatalogStream, LiveCounts

_COUNTS = [name for name in LiveCounts.__struct_fields__ if name in ConsumerRow.__struct_fields__]
_NO_COUNTS = LiveCounts()


def consumer_row(
    info: CatalogConsumer,
    stream_name: str,
    stream: StreamFigures,
    figures: ConsumerFigures,
    reports: Sequence[tuple[WorkerInfo, ConsumerAtWork]],
    at: datetime,
    database: str | None,
) -> ConsumerRow:
    """Make the row of a consumer. Its rates are filled in when it is sent."""
    counts, lag, rate = figures.counts or _NO_COUNTS, max(stream.last - figures.position, 0), figures.samples.rate
    oldest = None if figures.oldest is None else figures.oldest[1]
    age = None if oldest is None else max((at - oldest).total_seconds(), 0.0)
    of_consumer = [report for _, report in reports]
    work = at_work(of_consumer)
    diagnosis = diagnose(
        Situation(
            lag=lag,
            age=age,
            parked=counts.parked,
            blocked=counts.blocked,
            replaying=counts.replaying,
            in_flight=figures.held,
            owners=0 if figures.lease is None else figures.lease[1],
            paused=figures.paused,
            paused_until=figures.paused_until,
            reports=of_consumer,
            event_loop=next(
                (process_name(worker.host, worker.pid) for worker, _ in reports if worker.blocked is not None), None
            ),
            publish_rate=stream.samples.rate,
            finish_rate=rate,
            waiting=figures.waiting_sample,
            unmatched=figures.unmatched,
        )
    )
    return ConsumerRow(
        stream=stream_name, name=info.name, id=info.id, kind="push" if info.push else "pull",
        state=consumer_state(diagnosis.cause, figures.samples.levels), cause=diagnosis.cause, why=diagnosis.text,
        reason=work.reason, position=figures.position, finish_rate=rate, lag=lag, lag_seconds=age,
        in_flight=figures.held, actors=work.actors, busy_actors=work.busy, paused_until=figures.paused_until,
        rates=[], lags=[], database=database, **{name: getattr(counts, name) for name in _COUNTS},
    )  # fmt: skip


def stream_row(
    info: CatalogStream, figures: StreamFigures, consumers: Sequence[ConsumerRow], database: str | None
) -> StreamRow:
    """Make the row of a stream. Its rates are filled in when it is sent."""
    size = figures.size
    return StreamRow(
        **_shared(StreamRow, info),
        publish_rate=figures.samples.rate,
        messages=None if size is None else size.messages,
        size=None if size is None else size.size,
        scheduled=None if size is None else size.scheduled,
        last_seq=figures.last,
        consumers=len(consumers),
        lag=max((one.lag for one in consumers), default=0),
        dead_letters=sum(one.dead_letters for one in consumers),
        state="full" if figures.full else "",
        rates=[],
        database=database,
    )


def process_row(info: WorkerInfo, at: datetime) -> ProcessRow:
    """Make the row of a process at a time."""
    server, rates = info.server, [one.rate for one in info.consumers if one.rate is not None]
    return ProcessRow(
        **_shared(ProcessRow, info),
        process_id=info.id,
        silent_seconds=max((at - info.seen_at).total_seconds(), 0.0),
        uptime_seconds=max((at - info.started_at).total_seconds(), 0.0),
        actors=sum(one.actors for one in info.consumers),
        busy_actors=sum(one.busy for one in info.consumers),
        in_flight=sum(one.leased for one in info.consumers),
        rate=sum(rates) if rates else None,
        requests=None if server is None else server.requests,
        requests_in_flight=None if server is None else server.in_flight,
        waiting=None if server is None else server.waiting,
    )


def source_row(
    info: SourceInfo, samples: Samples, backfills: Sequence[BackfillInfo], database: str | None
) -> SourceRow:
    """Make the row of a source."""
    capture = info.capture
    facts = capture.facts if capture is not None and capture.state == "running" else None
    reason, mend = source_reason(info.name, capture)
    return SourceRow(
        **_shared(SourceRow, info),
        state=source_state(capture),
        reason=reason,
        mend=mend,
        since=None if capture is None else capture.since,
        changes_rate=samples.rate,
        rates=[round(one, 3) for one in samples.rates],
        captured=0 if capture is None else capture.captured,
        behind_bytes=None if facts is None else facts.behind,
        wal_held_bytes=None if facts is None else facts.held_back,
        failures=0 if capture is None else capture.failures,
        tables=list(info.settings.get("tables", ())),
        backfills=[Backfill.of(one) for one in backfills if one.source == info.name],
        info=info,
        database=database,
    )


def _shared(row: type[Struct], info: Struct) -> dict[str, Any]:
    """The fields of a row that are those of a record. They have the same names, except for `state`."""
    return {name: getattr(info, name) for name in _shared_names(row, type(info))}


@cache
def _shared_names(row: type[Struct], info: type[Struct]) -> tuple[str, ...]:
    return tuple(name for name in info.__struct_fields__ if name in row.__struct_fields__)
