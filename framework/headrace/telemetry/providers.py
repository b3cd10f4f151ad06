"""OpenTelemetry providers: those of the program or the user, or Headrace's own with an exporter.

Headrace's own providers serve one app and never become the program's global ones. The SDK's exporters work in separate
threads. They hold a bounded number of spans and drop the rest, so an unreachable collector
blocks nothing. The SDK's environment variables (`OTEL_…`) set the rest: the collector's address, the export
interval, the sampling of traces and the name of the service.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import anyio
import anyio.to_thread
from opentelemetry import metrics, trace

from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.telemetry import names

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.metrics.view import View

    from headrace.telemetry.settings import Telemetry

log = Log("headrace")

SCOPE = "headrace"
"""The name of the tracer and of the meter: the instrumentation scope."""

PROMETHEUS_PORTS = 64
"""The number of ports that are tried, from the first one on."""


class Providers:
    """The providers of one app.

    Attributes:
        tracer: creates the app's spans. None without traces.
        meter: creates the app's instruments. None without metrics.
        meters: the provider of `meter`.
        port: the port at which metrics can be scraped, or None.

    Raises:
        ConfigurationError: an exporter's settings are invalid.
        ModuleNotFoundError: a part of OpenTelemetry is missing.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._timeout = telemetry.shutdown_timeout
        self._flush: list[Callable[[], Any]] = []
        self._shutdown: list[Callable[[], Any]] = []
        self.port: int | None = None
        self.tracer: trace.Tracer | None = None
        self.meter: metrics.Meter | None = None
        self.meters: metrics.MeterProvider
        try:
            self._set_up(telemetry)
        except BaseException:
            for end in self._shutdown:
                _try_to_end(end)
            raise

    def _set_up(self, telemetry: Telemetry) -> None:
        if telemetry.traces is not None:
            self.tracer = self._tracers(telemetry.traces).get_tracer(SCOPE, _version(), names.SCHEMA)
        if telemetry.metrics is not None or telemetry.prometheus_registry is not None:
            self.meters = self._meters(telemetry)
            self.meter = self.meters.get_meter(SCOPE, _version(), names.SCHEMA)

    def _tracers(self, target: Any) -> trace.TracerProvider:
        if target == "global":
            return trace.get_tracer_provider()
        if not isinstance(target, str):
            return target  # type: ignore[no-any-return]
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

        exporter: SpanExporter
        if target == "otlp":
            _check_protocol("TRACES")
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter()
        else:
            exporter = ConsoleSpanExporter(out=sys.stdout)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._shutdown.append(provider.shutdown)
        return provider

    def _meters(self, telemetry: Telemetry) -> metrics.MeterProvider:
        if telemetry.metrics == "global":
            return metrics.get_meter_provider()
        if telemetry.metrics is not None and not isinstance(telemetry.metrics, str):
            return telemetry.metrics  # type: ignore[no-any-return]
        from opentelemetry.sdk.metrics import MeterProvider

        readers = list(self._readers(telemetry))
        provider = MeterProvider(readers, shutdown_on_exit=False, views=_views(telemetry.max_series))
        self._flush.append(provider.force_flush)
        self._shutdown.append(provider.shutdown)
        return provider

    def _readers(self, telemetry: Telemetry) -> Iterator[MetricReader]:
        registry = telemetry.prometheus_registry
        if registry is not None:
            from opentelemetry.exporter.prometheus import PrometheusMetricReader

            yield PrometheusMetricReader(registry=registry)
        if telemetry.metrics is not None and (telemetry.metrics != "prometheus" or registry is None):
            yield self._reader(telemetry)

    def _reader(self, telemetry: Telemetry) -> MetricReader:
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

        match telemetry.metrics:
            case "prometheus":
                return self._prometheus(telemetry)
            case "otlp":
                _check_protocol("METRICS")
                from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

                return PeriodicExportingMetricReader(OTLPMetricExporter())
        return PeriodicExportingMetricReader(ConsoleMetricExporter(out=sys.stdout))

    def _prometheus(self, telemetry: Telemetry) -> MetricReader:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        host = telemetry.prometheus_host or os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
        first = _prometheus_port() if telemetry.prometheus_port is None else telemetry.prometheus_port
        server, thread = _first_free(first, lambda port: start_http_server(port, host, registry))
        self._shutdown.append(partial(_end_server, server, thread))
        self.port = server.server_port
        log.info("serving metrics", url=f"http://{host}:{self.port}/metrics")
        return PrometheusMetricReader(registry=registry)

    async def flush(self) -> None:
        """Export the collected metrics, within the shutdown timeout."""
        await self._in_time(self._flush)

    async def stop(self) -> None:
        """Export what is left, within the shutdown timeout, and shut down Headrace's own providers."""
        ends, self._shutdown = self._shutdown, []
        await self._in_time(ends)

    async def _in_time(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run each in a daemon thread, and wait for the shutdown timeout at most. A collector may be slow, or
        never respond.
        """
        threads = [
            threading.Thread(target=_try_to_end, args=(call,), name="telemetry-end", daemon=True) for call in calls
        ]
        for thread in threads:
            thread.start()
        if threads:
            await anyio.to_thread.run_sync(_join, threads, self._timeout, limiter=anyio.CapacityLimiter(1))


def _views(max_series: int) -> Sequence[View]:
    """Return the view that sets the limit of series for each of Headrace's metrics."""
    from opentelemetry.sdk.metrics.view import View

    try:
        return (View(meter_name=SCOPE, aggregation_cardinality_limit=max_series),)
    except TypeError:  # SDKs before 1.45.2 have no limit
        return ()


def _join(threads: Iterable[threading.Thread], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("telemetry exporter not finished in time", seconds=timeout)


def _try_to_end(call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:
        log.warning("telemetry exporter failed at shutdown", error=error)


def _end_server(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


def _first_free(
    first: int, start: Callable[[int], tuple[WSGIServer, threading.Thread]]
) -> tuple[WSGIServer, threading.Thread]:
    last = min(first + PROMETHEUS_PORTS, 65536) - 1 if first else 0
    for port in range(first, last + 1):
        try:
            return start(port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigurationError(f"Metrics can't be served on port {port}: {error}.") from error
    raise ConfigurationError(
        f"Metrics can't be served, since the ports from {first} to {last} are taken. Set another prometheus_port."
    )


def _prometheus_port() -> int:
    text = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT") or "9464"
    if not text.isdecimal() or int(text) > 65535:
        raise ConfigurationError(f"OTEL_EXPORTER_PROMETHEUS_PORT={text!r} is invalid. It must be a port.")
    return int(text)


def _check_protocol(signal: str) -> None:
    """Check the OTLP protocol. The extra installs OTLP by HTTP only, because gRPC needs a large separate wheel."""
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = os.environ.get(variable, "http/protobuf")
        if protocol != "http/protobuf":
            raise ConfigurationError(
                f"{variable}={protocol!r} is not supported. Headrace sends OTLP by http/protobuf. For another protocol, set up the"
                " providers yourself, and set telemetry='global'."
            )


def _version() -> str | None:
    try:
        return version("headrace")
    except PackageNotFoundError:  # in a checkout
        return None
