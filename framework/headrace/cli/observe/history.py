"""Keeps recent samples of every count, and derives rates and trends from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from headrace.cli.observe.snapshot import ConsumerRow, Snapshot, SourceRow, StreamRow, WorkerRow
from headrace.flow.observed import PROBLEM_STATES, Samples, at_work, reports_by_consumer
from headrace.model.capture import BackfillInfo
from headrace.model.records import ConsumerAtWork, ConsumerInfo, Overview, StreamInfo, WorkerInfo
from headrace.model.sources import SourceInfo


class History:
    """Keeps the samples of each stream, consumer and source by id. Samples of removed ones are dropped."""

    def __init__(self) -> None:
        self._samples: dict[str, Samples] = {}

    def add(self, overview: Overview) -> Snapshot:
        """Add an overview. Returns the snapshot to show."""
        known, self._samples = self._samples, {}
        for stream in overview.streams:
            self._samples[stream.id] = samples = known.get(stream.id) or Samples()
            samples.add(overview.at, stream.last_seq or 0)
        for consumer in overview.consumers:
            self._samples[consumer.id] = samples = known.get(consumer.id) or Samples()
            samples.add(overview.at, finished_messages(consumer), consumer.lag)
        for source in overview.sources:
            self._samples[source.id] = samples = known.get(source.id) or Samples()
            samples.add(overview.at, 0 if source.capture is None else source.capture.captured)
        reports = reports_by_consumer(overview.workers)
        return Snapshot(
            at=overview.at,
            streams=[self._stream(stream) for stream in overview.streams],
            consumers=[
                self._consumer(one, [at for _, at in reports.get((one.stream, one.name), [])])
                for one in overview.consumers
            ],
            workers=[_worker_row(worker, overview.at) for worker in overview.workers],
            sources=sorted(
                (self._source(source, overview.backfills) for source in overview.sources),
                key=lambda one: (one.state not in PROBLEM_STATES, one.info.name),
            ),
        )

    def _stream(self, info: StreamInfo) -> StreamRow:
        samples = self._samples[info.id]
        return StreamRow(info=info, rate=samples.rate, rates=tuple(samples.rates))

    def _source(self, info: SourceInfo, backfills: Iterable[BackfillInfo]) -> SourceRow:
        samples = self._samples[info.id]
        return SourceRow(
            info=info,
            rate=samples.rate,
            rates=tuple(samples.rates),
            backfills=[one for one in backfills if one.source == info.name],
        )

    def _consumer(self, info: ConsumerInfo, reports: Sequence[ConsumerAtWork]) -> ConsumerRow:
        samples = self._samples[info.id]
        work = at_work(reports)
        return ConsumerRow(
            info=info,
            rate=samples.rate,
            rates=tuple(samples.rates),
            lags=tuple(samples.levels),
            actors=work.actors,
            busy=work.busy,
            reason=work.reason,
            breaker=work.breaker,
        )


def finished_messages(info: ConsumerInfo) -> int:
    """Return how many messages a consumer has finished, counted from the start of the stream, including gaps."""
    return info.position - info.num_ack_pending - info.parked - info.blocked - info.replaying


def _worker_row(info: WorkerInfo, at: datetime) -> WorkerRow:
    rates = [one.rate for one in info.consumers if one.rate is not None]
    return WorkerRow(
        info=info,
        actors=sum(one.actors for one in info.consumers),
        busy=sum(one.busy for one in info.consumers),
        rate=sum(rates) if rates else None,
        age=max(0.0, (at - info.started_at).total_seconds()),
        silent=max(0.0, (at - info.seen_at).total_seconds()),
    )
