"""The rows that requests get, made of the figures of a reading."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

from headrace.flow.observed import ConsumerState, SourceState, at_work, consumer_state, source_reason, source_state
from headrace.model.capture import BackfillInfo
from headrace.model.records import ConsumerAtWork, WorkerInfo
from headrace.model.sources import SourceInfo
from headrace.server.live.reading import ConsumerFigures, StreamFigures
from headrace.server.wire.captures import Backfill
from headrace.store import CatalogConsumer, CatalogStream

Rate = Annotated[float | None, Meta(description="Per second. null at first.")]


class StreamRow(Struct, kw_only=True):
    """The live state of a stream."""

    name: str
    id: str
    publish_rate: Rate
    messages: Annotated[int | None, Meta(description="Estimated above 10,000. null until it was counted.")]
    size: Annotated[int | None, Meta(description="In bytes. null until it was read.")]
    last_seq: int
    consumers: int
    lag: Annotated[int, Meta(description="The largest lag of its consumers.")]
    dead_letters: int
    state: Annotated[ConsumerState, Meta(description="`full` if publishing is refused.")]
    rates: Annotated[list[float], Meta(description="The last rates, one for each snapshot.")]
    database: str | None


class ConsumerRow(Struct, kw_only=True):
    """The live state of a consumer."""

    stream: str
    name: str
    id: str
    kind: Literal["pull", "push"]
    state: Annotated[ConsumerState, Meta(description="The most important thing about it. Empty if all is well.")]
    reason: Annotated[str, Meta(description="Why there are so many actors.")]
    finish_rate: Rate
    lag: int
    lag_seconds: Annotated[
        float | None,
        Meta(
            description="The age of the oldest message that is not finished. null if there is none, or it is not known."
        ),
    ]
    in_flight: int
    parked: int
    blocked: int
    dead_letters: int
    actors: Annotated[int | None, Meta(description="In all processes. null if none reports it.")]
    busy_actors: int
    missed: Annotated[int, Meta(description="How many messages retention removed before it got them.")]
    paused_until: Annotated[datetime | None, Meta(description="null if it is not paused, or until it is resumed.")]
    rates: Annotated[list[float], Meta(description="The last rates, one for each snapshot.")]
    database: str | None


class ProcessRow(Struct, kw_only=True):
    """A process. `actors`, `busy_actors` and `rate` are those of all its consumers."""

    process_id: str
    host: str
    pid: int
    kind: str
    version: str
    started_at: datetime
    seen_at: datetime
    gone: bool
    connections: int
    actors: int
    busy_actors: int
    in_flight: int
    rate: Rate
    blocked: Annotated[str | None, Meta(description="What blocks its event loop. null while nothing does.")]
    requests: Annotated[float | None, Meta(description="Requests of its server per second. null if it is none.")]
    consumers: list[ConsumerAtWork]
    more_consumers: int


class SourceRow(Struct, kw_only=True):
    """The live state of a source."""

    id: str
    name: str
    kind: str
    stream: str
    state: SourceState
    reason: str | None
    mend: Annotated[str | None, Meta(description="The statement or command that fixes it.")]
    since: datetime | None
    changes_rate: Rate
    captured: int
    behind_bytes: int | None
    wal_held_bytes: int | None
    failures: int
    tables: list[str]
    backfills: Annotated[list[Backfill], Meta(description="Those that are queued or running.")]
    database: str | None


class ProcessOfConsumer(Struct, kw_only=True):
    """What a process reports of a consumer."""

    process_id: str
    host: str
    pid: int
    in_flight: int
    waiting: int
    actors: int
    busy: int
    rate: Rate
    reason: str
    breaker: str | None
    latency_ms: Annotated[float | None, Meta(description="What a message takes, as the governor measured last.")]


def consumer_row(
    info: CatalogConsumer, stream_name: str, stream: StreamFigures, figures: ConsumerFigures,
    reports: Sequence[ConsumerAtWork], at: datetime, database: str | None,
) -> ConsumerRow:  # fmt: skip
    """Make the row of a consumer. Its rates are filled in when it is sent."""
    work, counts = at_work(reports), figures.counts
    lag = max(stream.last - figures.position, 0)
    rate, blocked = figures.samples.rate, 0 if counts is None else counts.blocked
    oldest = None if figures.oldest is None else figures.oldest[1]
    return ConsumerRow(
        stream=stream_name, name=info.name, id=info.id, kind="push" if info.push else "pull",
        state=consumer_state(
            work, paused=info.paused, blocked=blocked, lag=lag, owners=0 if figures.lease is None else figures.lease[1],
            rate=rate, lags=figures.samples.levels,
        ),
        reason=work.reason, finish_rate=rate, lag=lag,
        lag_seconds=None if oldest is None else max((at - oldest).total_seconds(), 0.0),
        in_flight=figures.held, parked=0 if counts is None else counts.parked, blocked=blocked,
        dead_letters=0 if counts is None else counts.dead_letters, actors=work.actors, busy_actors=work.busy,
        missed=0 if counts is None else counts.missed, paused_until=info.paused_until if info.paused else None,
        rates=[], database=database,
    )  # fmt: skip


def stream_row(
    info: CatalogStream, figures: StreamFigures, consumers: Sequence[ConsumerRow], at: datetime, database: str | None
) -> StreamRow:
    """Make the row of a stream. Its rates are filled in when it is sent."""
    size = figures.size
    full = info.full_until is not None and info.full_until > at
    return StreamRow(
        name=info.name, id=info.id, publish_rate=figures.samples.rate, messages=None if size is None else size.messages,
        size=None if size is None else size.size, last_seq=figures.last, consumers=len(consumers),
        lag=max((one.lag for one in consumers), default=0), dead_letters=sum(one.dead_letters for one in consumers),
        state="full" if full else "", rates=[], database=database,
    )  # fmt: skip


def process_row(info: WorkerInfo) -> ProcessRow:
    """Make the row of a process."""
    rates = [one.rate for one in info.consumers if one.rate is not None]
    return ProcessRow(
        process_id=info.id, host=info.host, pid=info.pid, kind=info.kind, version=info.version, started_at=info.started_at,
        seen_at=info.seen_at, gone=info.gone, blocked=info.blocked, connections=info.connections, actors=sum(one.actors for one in info.consumers),
        busy_actors=sum(one.busy for one in info.consumers), in_flight=sum(one.leased for one in info.consumers),
        rate=sum(rates) if rates else None, requests=None if info.server is None else info.server.requests,
        consumers=info.consumers, more_consumers=info.more_consumers,
    )  # fmt: skip


def source_row(
    info: SourceInfo, rate: float | None, backfills: Sequence[BackfillInfo], database: str | None
) -> SourceRow:
    """Make the row of a source."""
    capture = info.capture
    facts = capture.facts if capture is not None and capture.state == "running" else None
    reason, mend = source_reason(info.name, capture)
    return SourceRow(
        id=info.id, name=info.name, kind=info.kind, stream=info.stream, state=source_state(capture),
        reason=reason, mend=mend,
        since=None if capture is None else capture.since, changes_rate=rate,
        captured=0 if capture is None else capture.captured, behind_bytes=None if facts is None else facts.behind,
        wal_held_bytes=None if facts is None else facts.held_back, failures=0 if capture is None else capture.failures,
        tables=list(info.settings.get("tables", ())), backfills=[Backfill.of(one) for one in backfills if one.source == info.name],
        database=database,
    )  # fmt: skip


def process_of_consumer(worker: WorkerInfo, one: ConsumerAtWork) -> ProcessOfConsumer:
    """Make the row of a process at work on one consumer."""
    return ProcessOfConsumer(
        process_id=worker.id, host=worker.host, pid=worker.pid, in_flight=one.leased, waiting=one.waiting,
        actors=one.actors, busy=one.busy, rate=one.rate, reason=one.reason, breaker=one.breaker,
        latency_ms=None if one.latency is None else one.latency * 1000,
    )  # fmt: skip
