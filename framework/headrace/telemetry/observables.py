"""Observable counters and gauges, which read counts that the app keeps anyway when a collector asks for them.

OpenTelemetry keeps an instrument and its callback for as long as the provider lives. So there is one board per provider,
and apps are added to it and removed from it. When a collector asks, the board has the SDK forget the series of what is
gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from opentelemetry.metrics import CallbackOptions, Instrument, Meter, MeterProvider, Observation

from headrace.model.errors import UnknownStream
from headrace.model.log import Log
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.telemetry import names
from headrace.telemetry.metering import Attributes
from headrace.telemetry.series import LIMIT_NEAR, KeptSeries
from headrace.telemetry.settings import Statistics

log = Log("headrace")


class Metric(NamedTuple):
    """The name of a metric, the name of its value in the statistics, its unit and its description."""

    name: str
    source: str
    unit: str
    description: str


COUNTERS = (
    Metric("messaging.client.consumed.messages", "leased", "{message}", "Messages leased by this process."),
    Metric("headrace.consumer.acked", "acked", "{message}", "Messages handled and acked."),
    Metric("headrace.consumer.nacked", "failed", "{message}", "Deliveries that failed: to be retried, or rejected."),
    Metric("headrace.consumer.expired", "expired", "{message}", "Messages that expired before their handler began."),
    Metric(
        "headrace.consumer.cancelled",
        "cancelled",
        "{message}",
        "Messages that an operator cancelled while they were leased.",
    ),
    Metric("headrace.consumer.dead_lettered", "dead_lettered", "{message}", "Messages that became dead letters."),
    Metric("headrace.consumer.lost", "lost", "{message}", "Messages whose lease was lost before they were settled."),
)
GAUGES = (
    Metric("headrace.consumer.held", "held", "{message}", "Messages that this process has leased and not settled."),
    Metric("headrace.consumer.waiting", "waiting", "{message}", "Of these, messages that wait for an actor."),
    Metric("headrace.consumer.concurrency", "actors", "{actor}", "Current number of actors."),
    Metric("headrace.consumer.concurrency.target", "target", "{actor}", "Actors that the governor wants."),
    Metric("headrace.consumer.concurrency.busy", "busy", "{actor}", "Actors that run a handler."),
)
STORED = (
    Metric("headrace.consumer.lag.messages", "lag", "{message}", "Sequence numbers above the consumer's position."),
    Metric("headrace.consumer.lag.time", "", "s", "Age of the oldest message that is not settled."),
    Metric(
        "headrace.consumer.pending",
        "num_pending",
        "{message}",
        "Messages that wait to be leased, up to the number that is examined.",
    ),
    Metric("headrace.consumer.in_flight", "num_ack_pending", "{message}", "Messages leased by all processes."),
    Metric(
        "headrace.consumer.parked", "parked", "{message}", "Messages that wait for a retry, or behind one of their key."
    ),
    Metric("headrace.consumer.blocked", "blocked", "{message}", "Dead letters that block their key."),
    Metric("headrace.consumer.dead_letters", "dead_letters", "{message}", "Current number of dead letters."),
)
REASON = Metric(
    "headrace.consumer.concurrency.reason", "", "1", "1, with the code of the reason for the number of actors."
)
BREAKER = Metric(
    "headrace.consumer.breaker", "", "1", "1 while the circuit breaker is open or probes, 0 while it is closed."
)
CAPTURED = Metric("headrace.capture.changes", "captured", "{change}", "Changes captured by this process.")
CAPTURES = (
    Metric("headrace.capture.rate", "rate", "{change}/s", "Changes captured a second, over the last few seconds."),
    Metric(
        "headrace.capture.behind",
        "behind",
        "By",
        "WAL between what the captured server has written and what is captured.",
    ),
    Metric("headrace.capture.held_back", "held_back", "By", "WAL that the captured server keeps for the slot."),
)
CAPTURE_STATE = Metric("headrace.capture.state", "", "1", "1, with the state of the capture.")
ALARM = Metric("headrace.capture.alarm", "", "1", "1 while something is wrong with the slot.")
JOBS = (
    Metric("headrace.spark.tasks", "tasks", "{task}", "Tasks of the running Spark job that are planned so far."),
    Metric("headrace.spark.tasks.done", "tasks_done", "{task}", "Of these, tasks that are done."),
    Metric("headrace.spark.rows", "rows", "{message}", "Messages in the batch of the running Spark job."),
)
QUERIES = (
    Metric(
        "headrace.spark.query.lag",
        "lag",
        "{message}",
        "Sequence numbers between what a streaming query has read and the end of the stream.",
    ),
    Metric(
        "headrace.spark.query.input_rate", "input_rate", "{message}/s", "Messages a second that arrive at the query."
    ),
    Metric(
        "headrace.spark.query.processed_rate",
        "processed_rate",
        "{message}/s",
        "Messages a second that the query processes.",
    ),
)
POOL_COUNTERS = (
    Metric("headrace.postgres.round_trips", "round_trips", "{round_trip}", "Calls to Postgres."),
    Metric("headrace.pool.waits", "waits", "{wait}", "Times that a caller waited for a connection."),
    Metric("headrace.pool.wait_time", "waited", "s", "Time that callers waited for a connection."),
    Metric(
        "headrace.pool.died", "died", "{connection}", "Connections that were closed because they had died silently."
    ),
)
BLOCKED = Metric(
    "headrace.event_loop.blocked_time",
    "blocked",
    "s",
    "Time in which the event loop did not answer for half a second or more.",
)


class AppSource:
    """One app on the board.

    Attributes:
        surveyed: the state of its consumers in the store at the last survey.
        consumers: the consumers that it has a pipeline for, by stream and name, with the spec of the latest pipeline.
        streams: the streams that it has published to.
    """

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.surveyed: Mapping[tuple[str, str], ConsumerInfo] = {}
        self.consumers: dict[tuple[str, str], ConsumerSpec] = {}
        self.streams: set[str] = set()

    def published(self, stream: str, attributes: Attributes, error: BaseException | None) -> Attributes:
        """Return the attributes with which a publish is recorded. They don't name an unknown stream, because nothing limits
        the number of such names."""
        if not isinstance(error, UnknownStream):
            self.streams.add(stream)
            return attributes
        self.streams.discard(stream)
        return {name: value for name, value in attributes.items() if name != names.DESTINATION}


class Reading:
    """The statistics of all apps, read once for a collection. To make them for each instrument would take most of its time.

    Attributes:
        statistics: those of each app.
        metrics: the metrics that have been made of it. When one is made again, the next collection has begun.
    """

    def __init__(self, sources: Iterable[AppSource]) -> None:
        self.statistics = [source.statistics() for source in sources]
        self.metrics: set[str] = set()


class Observables:
    """The instruments of one provider.

    Attributes:
        sources: the connected apps.
    """

    def __init__(self, provider: MeterProvider, meter: Meter) -> None:
        self.sources: list[AppSource] = []
        self._series = partial(KeptSeries, ref(provider))  # weak, because it is the key of this board
        self._recorded: dict[str, KeptSeries] = {}
        self._ended = AppSource(dict)
        self._reading = Reading(())
        self._limit_reported = False
        for metric in COUNTERS:
            self._observe(meter.create_observable_counter, metric, self._counted)
        for metric in GAUGES:
            self._observe(meter.create_observable_up_down_counter, metric, self._counted)
        for metric in STORED:
            self._observe(meter.create_observable_gauge, metric, self._stored)
        for metric in JOBS:
            self._observe(meter.create_observable_gauge, metric, self._jobs)
        for metric in QUERIES:
            self._observe(meter.create_observable_gauge, metric, self._queries)
        for metric in POOL_COUNTERS:
            self._observe(meter.create_observable_counter, metric, self._pooled)
        self._observe(meter.create_observable_counter, BLOCKED, self._event_loops)
        self._observe(meter.create_observable_counter, CAPTURED, self._captured)
        for metric in CAPTURES:
            self._observe(meter.create_observable_gauge, metric, self._captured)
        self._observe(meter.create_observable_gauge, CAPTURE_STATE, self._capture_states)
        self._observe(meter.create_observable_gauge, ALARM, self._alarms)
        self._observe(meter.create_observable_gauge, REASON, self._reasons)
        self._observe(meter.create_observable_gauge, BREAKER, self._breakers)
        connections = Metric("db.client.connection.count", "", "{connection}", "Connections to Postgres.")
        maximum = Metric(
            "db.client.connection.max", "max", "{connection}", "Maximum number of connections to Postgres."
        )
        self._observe(meter.create_observable_up_down_counter, connections, self._connections)
        self._observe(meter.create_observable_up_down_counter, maximum, self._pooled)

    def join(self, source: AppSource, instruments: Iterable[Instrument]) -> None:
        """Add an app.

        Args:
            instruments: those in which it records. Apps of one provider have the same.
        """
        self.sources.append(source)
        for instrument in instruments:
            kept = self._series(instrument, synchronous=True)
            self._recorded[kept.name] = kept

    def leave(self, source: AppSource) -> None:
        """Remove an app that has ended. What was recorded of it is kept, since it may not have been exported yet."""
        self.sources.remove(source)
        self._ended.consumers |= source.consumers
        self._ended.streams |= source.streams

    def _observe(self, create: Any, metric: Metric, read: Callable[[str], Iterable[Observation]]) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            self._read(metric.name)
            observations = list(read(metric.source))
            observed = {frozenset((one.attributes or {}).items()) for one in observations}
            kept.forget(lambda attributes: frozenset(attributes.items()) in observed)
            self._check_limit(metric.name, kept)
            return observations

        kept = self._series(create(metric.name, [callback], unit=metric.unit, description=metric.description))

    def _read(self, metric: str) -> None:
        """Read the statistics if a collection begins, and forget what was recorded of consumers and streams that are gone."""
        if metric in self._reading.metrics or not self._reading.metrics:
            self._reading = Reading(list(self.sources))
            for kept in list(self._recorded.values()):
                kept.forget(self._is_live)
                self._check_limit(kept.name, kept)
        self._reading.metrics.add(metric)

    def _is_live(self, attributes: Mapping[str, Any]) -> bool:
        """Return whether an app has the consumer, or the stream if there is no consumer, of recorded attributes."""
        stream, consumer = attributes.get(names.DESTINATION), attributes.get(names.GROUP)
        sources = [*self.sources, self._ended]
        if consumer is not None:
            return any((stream, consumer) in source.consumers for source in sources)
        return stream is None or any(stream in source.streams for source in sources)

    def _check_limit(self, metric: str, kept: KeptSeries) -> None:
        """Log once if a metric is near the limit of its series."""
        fullest = None if self._limit_reported else kept.fullest()
        if fullest is not None and fullest.series >= fullest.limit * LIMIT_NEAR:
            self._limit_reported = True
            log.warning(
                "metric near its limit of series",
                metric=metric,
                series=fullest.series,
                limit=fullest.limit,
                hint="OpenTelemetry folds all further series into one: raise max_series of Telemetry, or the limit of your provider",
            )

    def _counted(self, count: str) -> Iterator[Observation]:
        for consumer, counts in self._consumers():
            yield Observation(counts[count], consumer)

    def _reasons(self, _: str) -> Iterator[Observation]:
        for consumer, counts in self._consumers():
            yield Observation(1, {**consumer, names.REASON: counts["reason_code"]})

    def _breakers(self, _: str) -> Iterator[Observation]:
        for consumer, counts in self._consumers():
            if breaker := counts.get("breaker"):
                yield Observation(int(breaker["state"] != "closed"), consumer)

    def _consumers(self) -> Iterator[tuple[dict[str, str], Mapping[str, Any]]]:
        for statistics in self._reading.statistics:
            for name, counts in statistics.get("consumers", {}).items():
                if "actors" in counts and not counts.get("deleted"):  # a push consumer that failed has no counts
                    yield consumer_attributes(*name.rsplit(":", 1)), counts

    def _jobs(self, count: str) -> Iterator[Observation]:
        """Observe Spark jobs. A handler without a job has no observation."""
        for statistics in self._reading.statistics:
            for name, counts in statistics.get("spark", {}).items():
                if counts.get("started") is not None:
                    yield Observation(counts[count], consumer_attributes(*name.rsplit(":", 1)))

    def _queries(self, field: str) -> Iterator[Observation]:
        """Observe the streams of streaming queries on Spark, as of their last progress."""
        for statistics in self._reading.statistics:
            for query in statistics.get("queries", {}).values():
                for stream in query["streams"]:
                    yield Observation(
                        stream[field],
                        {
                            names.SYSTEM: names.SYSTEM_NAME,
                            names.DESTINATION: stream["stream"],
                            names.QUERY: query["name"],
                        },
                    )

    def _captured(self, field: str) -> Iterator[Observation]:
        """Observe captures. An unknown value, for example while a source is stopped, has no observation."""
        for counts, attributes in self._captures():
            if (value := counts.get(field)) is not None:
                yield Observation(value, attributes)

    def _capture_states(self, _: str) -> Iterator[Observation]:
        for counts, attributes in self._captures():
            yield Observation(1, {**attributes, names.CAPTURE_STATE: counts["state"]})

    def _alarms(self, _: str) -> Iterator[Observation]:
        for counts, attributes in self._captures():
            if "alarm" in counts:
                yield Observation(int(counts["alarm"] is not None), attributes)

    def _captures(self) -> Iterator[tuple[Mapping[str, Any], dict[str, str]]]:
        for statistics in self._reading.statistics:
            for name, counts in statistics.get("sources", {}).items():
                yield (
                    counts,
                    {names.SYSTEM: names.SYSTEM_NAME, names.DESTINATION: counts["stream"], names.SOURCE: name},
                )

    def _stored(self, field: str) -> Iterator[Observation]:
        for source in list(self.sources):
            for (stream, name), info in source.surveyed.items():
                yield Observation(getattr(info, field) if field else age(info), consumer_attributes(stream, name))

    def _pooled(self, count: str) -> Iterator[Observation]:
        for counts in self._pools():
            yield Observation(counts[count], _POOL)

    def _connections(self, _: str) -> Iterator[Observation]:
        for counts in self._pools():
            yield Observation(counts["idle"], {**_POOL, names.STATE: "idle"})
            yield Observation(counts["open"] - counts["idle"], {**_POOL, names.STATE: "used"})

    def _event_loops(self, count: str) -> Iterator[Observation]:
        for statistics in self._reading.statistics:
            if counts := statistics.get("event_loop"):
                yield Observation(counts[count], {names.SYSTEM: names.SYSTEM_NAME})

    def _pools(self) -> Iterator[Mapping[str, Any]]:
        for statistics in self._reading.statistics:
            if counts := statistics.get("connections"):
                yield counts


_POOL = {names.POOL: names.SYSTEM_NAME}
_observables: WeakKeyDictionary[MeterProvider, Observables] = WeakKeyDictionary()


def observables_of(provider: MeterProvider, meter: Meter) -> Observables:
    """The board of a provider. There is one per provider."""
    observables = _observables.get(provider)
    if observables is None:
        observables = _observables[provider] = Observables(provider, meter)
    return observables


def consumer_attributes(stream: str, name: str) -> dict[str, str]:
    """The attributes of a consumer's metrics."""
    return {names.SYSTEM: names.SYSTEM_NAME, names.DESTINATION: stream, names.GROUP: name}


def age(info: ConsumerInfo) -> float:
    """Seconds since the oldest unsettled message was published, or 0 if there is none."""
    return 0.0 if info.oldest_unacked_at is None else max(0.0, time() - info.oldest_unacked_at.timestamp())
