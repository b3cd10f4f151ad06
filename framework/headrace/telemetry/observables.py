"""Observable counters and gauges, which read counts that the app keeps anyway when a collector asks for them.

OpenTelemetry keeps an observable instrument and its callback for as long as the provider lives. So there is
one board per provider, and apps are added to it and removed from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from headrace.model.records import ConsumerInfo
from headrace.telemetry import names
from headrace.telemetry.settings import Statistics


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
REASON = Metric("headrace.consumer.concurrency.reason", "", "1", "1, with the governor's reason, without its numbers.")
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
    """

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.surveyed: Mapping[tuple[str, str], ConsumerInfo] = {}


class Observables:
    """The observable instruments of one provider.

    Attributes:
        sources: the connected apps.
    """

    def __init__(self, meter: Meter) -> None:
        self.sources: list[AppSource] = []
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

    def _observe(self, create: Any, metric: Metric, read: Callable[[str], Iterable[Observation]]) -> None:
        def callback(source: str, _: CallbackOptions) -> Iterable[Observation]:
            return read(source)

        create(metric.name, [partial(callback, metric.source)], unit=metric.unit, description=metric.description)

    def _counted(self, count: str) -> Iterator[Observation]:
        for consumer, counts in self._consumers():
            yield Observation(counts[count], consumer)

    def _reasons(self, _: str) -> Iterator[Observation]:
        for consumer, counts in self._consumers():
            yield Observation(1, {**consumer, names.REASON: _NUMBER.sub("N", counts["reason"])})

    def _breakers(self, _: str) -> Iterator[Observation]:
        for consumer, counts in self._consumers():
            if breaker := counts.get("breaker"):
                yield Observation(int(breaker["state"] != "closed"), consumer)

    def _consumers(self) -> Iterator[tuple[dict[str, str], Mapping[str, Any]]]:
        for source in list(self.sources):
            for name, counts in source.statistics().get("consumers", {}).items():
                if "actors" in counts and not counts.get("deleted"):  # a push consumer that failed has no counts
                    yield consumer_attributes(*name.rsplit(":", 1)), counts

    def _jobs(self, count: str) -> Iterator[Observation]:
        """Observe Spark jobs. A handler without a job has no observation."""
        for source in list(self.sources):
            for name, counts in source.statistics().get("spark", {}).items():
                if counts.get("started") is not None:
                    yield Observation(counts[count], consumer_attributes(*name.rsplit(":", 1)))

    def _queries(self, field: str) -> Iterator[Observation]:
        """Observe the streams of streaming queries on Spark, as of their last progress."""
        for source in list(self.sources):
            for query in source.statistics().get("queries", {}).values():
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
        for source in list(self.sources):
            for name, counts in source.statistics().get("sources", {}).items():
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
        for source in list(self.sources):
            if counts := source.statistics().get("event_loop"):
                yield Observation(counts[count], {names.SYSTEM: names.SYSTEM_NAME})

    def _pools(self) -> Iterator[Mapping[str, Any]]:
        for source in list(self.sources):
            if counts := source.statistics().get("connections"):
                yield counts


_NUMBER = re.compile(r"\d[\d.,]*")  # otherwise each decision would be a new series
_POOL = {names.POOL: names.SYSTEM_NAME}
_observables: WeakKeyDictionary[MeterProvider, Observables] = WeakKeyDictionary()


def observables_of(provider: MeterProvider, meter: Meter) -> Observables:
    """The board of a provider. There is one per provider."""
    observables = _observables.get(provider)
    if observables is None:
        observables = _observables[provider] = Observables(meter)
    return observables


def consumer_attributes(stream: str, name: str) -> dict[str, str]:
    """The attributes of a consumer's metrics."""
    return {names.SYSTEM: names.SYSTEM_NAME, names.DESTINATION: stream, names.GROUP: name}


def age(info: ConsumerInfo) -> float:
    """Seconds since the oldest unsettled message was published, or 0 if there is none."""
    return 0.0 if info.oldest_unacked_at is None else max(0.0, time() - info.oldest_unacked_at.timestamp())
