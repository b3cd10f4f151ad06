"""The answers of the routes of the live state."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from headrace.admin.live.snapshot import Totals
from headrace.model.records import ConsumerAtWork, ConsumerInfo, StreamInfo, WorkerInfo
from headrace.model.watching.live import ConsumerRow, LiveSnapshot, ProcessRow, SourceRow, StreamRow
from headrace.server.live.attention import Attention


class ServerFacts(Struct, kw_only=True):
    """The server that answers."""

    version: str
    uptime_seconds: float
    processes: Annotated[int, Meta(description="The running processes of all kinds.")]


class DatabaseFacts(Struct, kw_only=True):
    """The server's own database."""

    reachable: bool
    version: str | None
    size_bytes: int | None
    clock_offset_seconds: Annotated[float | None, Meta(description="How far its clock is ahead of the server's.")]
    role: Annotated[
        str | None,
        Meta(description="The database role of the server, as in the audit log. null without a scope for all streams."),
    ]
    error: str | None


class Live(Struct, kw_only=True):
    """The live state in short."""

    at: datetime
    server: ServerFacts
    database: DatabaseFacts
    totals: Annotated[Totals, Meta(description="Of the streams that the caller may see.")]
    attention: Annotated[list[Attention], Meta(description="Problems that need attention, the worst first.")]
    unavailable: Annotated[list[str], Meta(description="The further databases that did not answer.")]


class LiveAnswer(Struct):
    """The live state in short."""

    data: Live


class StreamRows(Struct, kw_only=True):
    """The live state of streams."""

    data: list[StreamRow]
    total: Annotated[int, Meta(description="How many there are without `offset` and `limit`.")]
    at: datetime


class ConsumerRows(Struct, kw_only=True):
    """The live state of consumers."""

    data: list[ConsumerRow]
    total: Annotated[int, Meta(description="How many there are without `offset` and `limit`.")]
    at: datetime


class ProcessRows(Struct, kw_only=True):
    """The running processes."""

    data: list[ProcessRow]
    total: Annotated[int, Meta(description="How many there are without `offset` and `limit`.")]
    at: datetime


class SourceRows(Struct, kw_only=True):
    """The live state of sources."""

    data: list[SourceRow]
    total: Annotated[int, Meta(description="How many there are without `offset` and `limit`.")]
    at: datetime


class LiveSnapshotAnswer(Struct):
    """The live state of everything."""

    data: LiveSnapshot


class ProcessOfConsumer(Struct, kw_only=True):
    """The report of a process on a consumer."""

    process_id: str
    host: str
    pid: int
    in_flight: int
    waiting: int
    actors: int
    busy: int
    rate: Annotated[float | None, Meta(description="Per second. null at first.")]
    reason: str
    breaker: str | None
    breaker_reason: Annotated[str | None, Meta(description="The failure that opened the breaker.")]
    breaker_seconds: Annotated[float | None, Meta(description="Until an open breaker tries one message.")]
    latency_ms: Annotated[float | None, Meta(description="The time per message, as the governor last measured it.")]
    p50_ms: Annotated[float | None, Meta(description="The median time per message. null if none was measured.")]
    p95_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, worker: WorkerInfo, one: ConsumerAtWork) -> ProcessOfConsumer:
        """Convert what a process reports."""
        return cls(
            process_id=worker.id,
            host=worker.host,
            pid=worker.pid,
            in_flight=one.leased,
            waiting=one.waiting,
            actors=one.actors,
            busy=one.busy,
            rate=one.rate,
            reason=one.reason,
            breaker=one.breaker,
            breaker_reason=one.breaker_reason,
            breaker_seconds=one.breaker_left,
            latency_ms=None if one.latency is None else one.latency * 1000,
            p50_ms=None if one.durations is None else one.durations.p50 * 1000,
            p95_ms=None if one.durations is None else one.durations.p95 * 1000,
            p99_ms=None if one.durations is None else one.durations.p99 * 1000,
        )


class LiveStream(StreamRow, kw_only=True):
    """The live state of a stream, and its settings."""

    info: Annotated[StreamInfo | None, Meta(description="null while its database does not answer.")]


class LiveConsumer(ConsumerRow, kw_only=True):
    """The live state of a consumer, its settings, and the processes that work on it."""

    info: Annotated[ConsumerInfo | None, Meta(description="null while its database does not answer.")]
    processes: list[ProcessOfConsumer]
    governor: Annotated[list[Decision], Meta(description="Why each process has as many actors as it has.")]


class Decision(Struct):
    """Why a process has as many actors as it has."""

    process_id: str
    text: str


class LiveStreamAnswer(Struct):
    """The live state of one stream."""

    data: LiveStream
    at: datetime


class LiveConsumerAnswer(Struct):
    """The live state of one consumer."""

    data: LiveConsumer
    at: datetime
