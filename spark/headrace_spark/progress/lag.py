"""Computes from a progress report of Spark how far a query lags behind each of its streams, in plain code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from headrace.model.errors import InvalidInput
from headrace_spark.positions.offsets import Position, parse


class SourceReport(Protocol):
    """The part of a progress report about one source."""

    @property
    def endOffset(self) -> str: ...  # noqa: N802
    @property
    def latestOffset(self) -> str: ...  # noqa: N802
    @property
    def inputRowsPerSecond(self) -> float: ...  # noqa: N802
    @property
    def processedRowsPerSecond(self) -> float: ...  # noqa: N802


class Lag(msgspec.Struct, frozen=True):
    """The state of one stream in a query.

    Attributes:
        stream: the name of the stream.
        position: the last seq that was read.
        lag: the number of seqs behind it. Seqs without a message count, so it is an upper bound.
        input_rate, processed_rate: messages a second that arrived and that were processed, of all streams of the
            source together.
    """

    stream: str
    position: int
    lag: int
    input_rate: float
    processed_rate: float


def lags(report: SourceReport) -> list[Lag]:
    """The lag of each stream, by name. It is empty for a source of another kind, or one that does not report its end."""
    latest = _positions(report.latestOffset)
    read = _positions(report.endOffset)
    return [
        Lag(
            stream=one.name,
            position=read[uid].seq if uid in read else 0,
            lag=max(one.seq - (read[uid].seq if uid in read else 0), 0),
            input_rate=_rate(report.inputRowsPerSecond),
            processed_rate=_rate(report.processedRowsPerSecond),
        )
        for uid, one in sorted(latest.items(), key=lambda item: item[1].name)
        if one.name
    ]


def _positions(text: str | None) -> dict[str, Position]:
    try:
        offset: Mapping[str, Any] = json.loads(text or "{}")
        found = parse(offset)
    except (InvalidInput, ValueError, TypeError):
        return {}
    name = offset.get("name")
    return {uid: msgspec.structs.replace(one, name=str(name)) if name else one for uid, one in found.items()}


def _rate(value: float | None) -> float:
    """The rate, which Spark leaves undefined (NaN, or nothing) for a report without a duration."""
    return value if value is not None and value == value and value not in (float("inf"), float("-inf")) else 0.0
