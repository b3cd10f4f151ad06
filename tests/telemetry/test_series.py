"""The series of many streams and consumers: none is folded into another, and those of what is gone are forgotten."""

from __future__ import annotations

import gc
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View
from prometheus_client import CollectorRegistry

from headrace import App, Telemetry, UnknownStream
from headrace.admin import Admin
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.reasons import REASONS
from headrace.runtime.maintenance.survey import Survey
from headrace.telemetry.instrumentation import Instrumentation
from tests.runtime.running import eventually, numbered, running
from tests.support.logs import logged
from tests.telemetry.recorded import Recorded

STREAM, CONSUMER, REASON = "messaging_destination_name", "messaging_consumer_group_name", "headrace_reason"
OVERFLOW = "otel_metric_overflow"


class Fleet:
    """An app with as many consumers as a test wants, with the telemetry of an own registry.

    Attributes:
        consumers: their names, and the codes of their reasons.
        readings: how often the statistics were read.
    """

    def __init__(self, **settings: Any) -> None:
        self._registry = CollectorRegistry()
        self.consumers: dict[str, str] = {}
        self.readings = 0
        telemetry = Telemetry(traces=None, metrics=None, prometheus_registry=self._registry, **settings)
        self.instrumentation = Instrumentation(telemetry, self._statistics)

    def _statistics(self) -> dict[str, Any]:
        self.readings += 1
        counts = Counter[str]()
        return {
            "consumers": {
                f"orders:{name}": {**dict.fromkeys(COUNTS, 1), "reason_code": reason, "deleted": False}
                for name, reason in self.consumers.items()
            },
            "connections": counts,
        }

    def scrape(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of the samples by the name of their metric."""
        return {metric.name: [sample.labels for sample in metric.samples] for metric in self._registry.collect()}


COUNTS = (
    "leased",
    "acked",
    "failed",
    "expired",
    "dead_lettered",
    "lost",
    "held",
    "waiting",
    "actors",
    "target",
    "busy",
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a collection take any time. The SDK gives up after ten seconds, which a busy machine may need."""
    monkeypatch.setattr("opentelemetry.sdk.metrics._internal.measurement_consumer.time_ns", lambda: 0)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def stored(stream: str) -> Any:
    """Return the state in the store of a consumer of a stream."""
    counts = dict.fromkeys(("lag", "num_pending", "num_ack_pending", "parked", "blocked", "dead_letters"), 0)
    return SimpleNamespace(stream=stream, name="ship", oldest_unacked_at=None, **counts)


def spec_of(name: str, stream: str = "orders") -> ConsumerSpec:
    return ConsumerSpec(stream=stream, name=name)


def test_each_of_thousands_of_streams_and_consumers_has_its_own_series(fleet: Fleet) -> None:
    streams = {f"s{number}" for number in range(2500)}
    for code in list(REASONS)[:5]:
        fleet.consumers = {f"c{number}": code for number in range(600)}
        reasons = fleet.scrape()["headrace_consumer_concurrency_reason"]
        assert {(labels[CONSUMER], labels[REASON]) for labels in reasons} == {(name, code) for name in fleet.consumers}
        assert len(reasons) == 600
    fleet.instrumentation.surveyed([stored(stream) for stream in streams], ())
    scraped = fleet.scrape()
    for metric in ("lag_messages", "lag_time_seconds", "pending", "in_flight", "parked", "blocked", "dead_letters"):
        assert {labels[STREAM] for labels in scraped[f"headrace_consumer_{metric}"]} == streams
    assert not [labels for samples in scraped.values() for labels in samples if OVERFLOW in labels]


def test_a_process_whose_consumers_change_for_hours_stays_within_the_limit() -> None:
    fleet = Fleet(max_series=30)
    for round_number in range(40):
        names = {f"c{round_number}-{number}" for number in range(10)}
        specs = [spec_of(name) for name in names]
        fleet.consumers = dict.fromkeys(names, "fixed")
        for spec in specs:
            fleet.instrumentation.consumer_begins(spec)
            with fleet.instrumentation.settling(spec, 1, 0, 0):
                pass
        with fleet.instrumentation.publishing(f"s{round_number}", [None]):
            pass
        scraped = fleet.scrape()
        for metric in ("headrace_consumer_acked", "messaging_client_operation_duration_seconds"):
            assert {labels[CONSUMER] for labels in scraped[metric] if labels.get(CONSUMER)} == names
        sent = scraped["messaging_client_sent_messages"]
        assert {labels[STREAM] for labels in sent} == {f"s{round_number}"}
        assert not [labels for samples in scraped.values() for labels in samples if OVERFLOW in labels]
        for spec in specs:
            fleet.instrumentation.consumer_deleted(spec)
        fleet.instrumentation.surveyed((), fleet.instrumentation.published())


def test_the_end_of_an_earlier_pipeline_keeps_the_series_of_a_consumer_that_was_made_again(fleet: Fleet) -> None:
    earlier, later = spec_of("ship"), spec_of("ship")
    fleet.instrumentation.consumer_begins(earlier)
    fleet.instrumentation.consumer_begins(later)
    with fleet.instrumentation.settling(later, 1, 0, 0):
        pass
    fleet.instrumentation.consumer_deleted(earlier)
    assert fleet.scrape()["messaging_client_operation_duration_seconds"]
    fleet.instrumentation.consumer_deleted(later)
    assert not fleet.scrape().get("messaging_client_operation_duration_seconds")


def test_a_collection_reads_the_statistics_once(fleet: Fleet) -> None:
    fleet.consumers = {"ship": "fixed"}
    for count in (1, 2, 3):
        fleet.scrape()
        assert fleet.readings == count


@pytest.mark.asyncio
async def test_deleted_consumers_and_streams_are_gone_from_the_next_export(dsn: str, recorded: Recorded) -> None:
    app = App(dsn, streams=["orders", "invoices", "receipts"], telemetry=recorded.telemetry)

    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    @app.consumer("invoices")
    async def bill(number: int) -> None: ...

    async def gone() -> bool:
        return any(pipeline.gone for pipeline in pipelines)

    async with running(app):
        for stream in ("orders", "invoices", "receipts"):
            await app.publish_many(stream, numbered("ab"))
        await app.idle()
        assert app._service is not None
        assert app._instruments is not None
        pipelines, admin = app._service.pipelines, Admin(app.database)
        survey = Survey(app.database, [("orders", "ship"), ("invoices", "bill")], app._instruments)
        await survey.once()
        before = {metric: _objects(recorded, metric) for metric in METRICS}
        await admin.delete_stream("invoices", force=True)
        await admin.delete_stream("receipts", force=True)
        await eventually(gone)
        await survey.once()
        after = {metric: _objects(recorded, metric) for metric in METRICS}
    assert before == {
        **{metric: {("orders", "ship"), ("invoices", "bill")} for metric in METRICS},
        "messaging.client.sent.messages": {("orders", None), ("invoices", None), ("receipts", None)},
    }
    assert after == {
        **{metric: {("orders", "ship")} for metric in METRICS},
        "messaging.client.sent.messages": {("orders", None)},
    }


METRICS = (
    "headrace.consumer.acked",
    "headrace.consumer.lag.messages",
    "headrace.consumer.concurrency.reason",
    "messaging.process.duration",
    "messaging.client.sent.messages",
)


def _objects(recorded: Recorded, metric: str) -> set[tuple[str, str | None]]:
    points = [point.attributes for point in recorded.points(metric)]
    return {(one["messaging.destination.name"], one.get("messaging.consumer.group.name")) for one in points}


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(traces=False)


@pytest.mark.asyncio
async def test_the_names_of_unknown_streams_are_no_series(dsn: str, recorded: Recorded) -> None:
    async with App(dsn, telemetry=recorded.telemetry) as app:
        for number in range(3):
            with pytest.raises(UnknownStream):
                await app.publish(f"unknown{number}", "a", 1)
        (point,) = recorded.points("messaging.client.sent.messages")
    assert (point.value, point.attributes["error.type"]) == (3, "headrace.UnknownStream")
    assert "messaging.destination.name" not in point.attributes


def test_a_provider_of_the_users_near_its_limit_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    provider, reader = _provider(limit=10)
    consumers: dict[str, Any] = {}
    instrumentation = Instrumentation(Telemetry(traces=None, metrics=provider), lambda: {"consumers": consumers})
    for count, reports in ((7, 0), (8, 1), (10, 1)):
        consumers |= {f"orders:c{n}": {**dict.fromkeys(COUNTS, 1), "reason_code": "fixed"} for n in range(count)}
        for _ in range(2):
            reader.get_metrics_data()
        assert len(logged(caplog, "metric near its limit of series", limit=10)) == reports
    assert instrumentation.prometheus_port is None


@pytest.mark.asyncio
async def test_a_provider_of_the_users_ends_after_the_app(recorded: Recorded) -> None:
    provider, reader = _provider(limit=10)
    instrumentation = Instrumentation(Telemetry(traces=None, metrics=provider), dict)
    reader.get_metrics_data()
    await instrumentation.stop()
    ended = ref(provider)
    del provider, reader, instrumentation
    gc.collect()
    assert ended() is None


def _provider(*, limit: int) -> tuple[MeterProvider, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    try:
        view = View(meter_name="headrace", aggregation_cardinality_limit=limit)
    except TypeError:
        pytest.skip("this version of OpenTelemetry's SDK has no limit of series")
    return cast(Any, MeterProvider)([reader], shutdown_on_exit=False, views=[view]), reader
