"""The answers of the routes of the live state."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.server.live.attention import Attention
from headrace.server.live.rows import ConsumerRow, ProcessOfConsumer, ProcessRow, SourceRow, StreamRow
from headrace.server.live.snapshot import Totals


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
    totals: Annotated[Totals, Meta(description="Of what the caller may see.")]
    attention: Annotated[list[Attention], Meta(description="What needs somebody, the worst first.")]
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
