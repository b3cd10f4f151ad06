"""The live state of one or more databases at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import anyio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from headrace.admin.live.reading import TURN, ConsumerFigures, Reading, StreamFigures
from headrace.admin.live.rows import consumer_row, process_row, source_row, stream_row
from headrace.flow.observed import PROBLEM_STATES, Samples, reports_by_consumer
from headrace.model.capture import BackfillInfo
from headrace.model.records import ConsumerAtWork, WorkerInfo
from headrace.model.sources import SourceInfo
from headrace.model.watching.live import ConsumerRow, LiveSnapshot, ProcessRow, SourceRow, StreamRow
from headrace.store import CatalogConsumer


class Part(Struct):
    """The state read from one database. `database` is the name of a further one."""

    at: datetime
    reading: Reading
    workers: list[WorkerInfo]
    sources: list[SourceInfo]
    backfills: list[BackfillInfo]
    captured: Mapping[str, Samples]
    database: str | None = None
    reachable: Collection[str] | None = None
    """The names of the streams that requests reach there. None for all."""


class Totals(Struct, kw_only=True):
    """Sums over what the caller may see."""

    streams: int
    consumers: int
    processes: int
    sources: int
    publish_rate: float
    finish_rate: float
    lag: int
    in_flight: int
    parked: int
    blocked: int
    dead_letters: int
    actors: int
    busy_actors: int


class Snapshot:
    """The live state at one moment.

    Attributes:
        number: rises with each snapshot.
        at: when it was taken, by the clock of the server's own database.
        reports: what processes report of each consumer.
    """

    def __init__(self, number: int, at: datetime) -> None:
        self.number = number
        self.at = at
        self.streams: dict[str, StreamRow] = {}
        self.consumers: dict[tuple[str, str], ConsumerRow] = {}
        self.processes: list[ProcessRow] = []
        self.sources: list[SourceRow] = []
        self.reports: dict[tuple[str, str], list[tuple[WorkerInfo, ConsumerAtWork]]] = {}
        self._figures: dict[str, StreamFigures | ConsumerFigures] = {}

    def with_rates(self, row: StreamRow | ConsumerRow) -> StreamRow | ConsumerRow:
        """Fill in the last rates of a row that is sent."""
        row.rates = self._rates(row.id)
        return row

    def _rates(self, row: str) -> list[float]:
        return [round(rate, 3) for rate in self._figures[row].samples.rates]

    async def everything(
        self,
        visible: Collection[str] | None = None,
        sources: Sequence[SourceRow] | None = None,
        away: Sequence[str] = (),
        error: str | None = None,
    ) -> LiveSnapshot:
        """Return all rows, with their last rates and lags.

        Args:
            visible: the names of the streams whose rows are returned, None for all. Processes are of all streams.
            sources: the sources to return. None for all.
            away: the further databases that did not answer.
            error: why the database could not be read since.
        """
        streams, consumers = list[StreamRow](), list[ConsumerRow]()
        for stream in self.streams.values():
            if visible is None or stream.name in visible:
                streams.append(replace(stream, rates=self._rates(stream.id)))
        for done, consumer in enumerate(self.consumers.values()):
            if visible is None or consumer.stream in visible:
                lags = list(self._figures[consumer.id].samples.levels)
                consumers.append(replace(consumer, rates=self._rates(consumer.id), lags=lags))
            if done % TURN == TURN - 1:
                await anyio.lowlevel.checkpoint()
        return LiveSnapshot(
            at=self.at,
            streams=sorted(streams, key=lambda one: one.name),
            consumers=sorted(consumers, key=lambda one: (one.stream, one.name)),
            processes=self.processes if visible is None else [],
            sources=list(self.sources if sources is None else sources),
            unavailable=sorted(away),
            error=error,
        )

    async def add(self, part: Part) -> None:
        """Add what was read of one database."""
        reports = reports_by_consumer(part.workers)
        for name, found in reports.items():
            self.reports.setdefault(name, []).extend(found)
        of_stream: dict[int, list[CatalogConsumer]] = {}
        for one in part.reading.catalog_consumers:
            of_stream.setdefault(one.stream, []).append(one)
        done = 0
        for stream in part.reading.catalog_streams:
            figures = part.reading.streams.get(stream.number)
            if figures is None or (part.reachable is not None and stream.name not in part.reachable):
                continue
            rows = []
            for consumer in of_stream.get(stream.number, ()):
                known = part.reading.consumers.get(consumer.number)
                if known is not None:
                    work = reports.get((stream.name, consumer.name), [])
                    row = consumer_row(consumer, stream.name, figures, known, work, self.at, part.database)
                    rows.append(row)
                    self.consumers[stream.name, consumer.name] = row
                    self._figures[row.id] = known
            row_of_stream = stream_row(stream, figures, rows, part.database)
            self.streams[stream.name] = row_of_stream
            self._figures[stream.id] = figures
            done += len(rows) + 1
            if done >= TURN:
                done = 0
                await anyio.lowlevel.checkpoint()
        known_processes = {(one.host, one.pid) for one in self.processes}
        self.processes += [
            process_row(one, part.at) for one in part.workers if (one.host, one.pid) not in known_processes
        ]
        self.sources += [
            source_row(one, part.captured[one.id], part.backfills, part.database)
            for one in part.sources
            if part.reachable is None or one.stream in part.reachable
        ]
        self.sources.sort(key=lambda one: (one.state not in PROBLEM_STATES, one.name))

    def totals(self, visible: Collection[str] | None) -> Totals:
        """Sum up what a caller may see. `visible`: the names of its streams, None for all."""
        consumers = [one for one in self.consumers.values() if visible is None or one.stream in visible]
        streams = [one for one in self.streams.values() if visible is None or one.name in visible]
        sources = [one for one in self.sources if visible is None or one.stream in visible]
        summed = ("lag", "in_flight", "parked", "blocked", "dead_letters", "actors", "busy_actors")
        return Totals(
            streams=len(streams),
            consumers=len(consumers),
            sources=len(sources),
            processes=sum(not one.gone for one in self.processes),
            publish_rate=sum(one.publish_rate or 0.0 for one in streams),
            finish_rate=sum(one.finish_rate or 0.0 for one in consumers),
            **{name: sum(getattr(one, name) or 0 for one in consumers) for name in summed},
        )
