"""Exporters: their configuration, the bounded flush at the end, and collectors that are not available."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace import App, ConfigurationError, Telemetry
from tests.runtime.running import numbered, running
from tests.support.logs import logged


class Collector:
    """Records what a collector received."""

    def __init__(self) -> None:
        self.spans: set[str] = set()
        self.sums: dict[str, float] = {}

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            self.spans |= {
                s.name for resource in traces.resource_spans for scope in resource.scope_spans for s in scope.spans
            }
            return
        metrics = ExportMetricsServiceRequest.FromString(body)
        for resource in metrics.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.sum.data_points:
                        self.sums[metric.name] = point.as_int or point.as_double


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Run an HTTP server and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            respond(self)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.asyncio
async def test_a_collector_has_everything_when_the_app_has_ended(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()

    def take(request: BaseHTTPRequestHandler) -> None:
        collector.take(request.path, request.rfile.read(int(request.headers["Content-Length"])))
        request.send_response(200)
        request.end_headers()

    app = App(dsn, streams=["orders"], telemetry="otlp")

    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    with serving(take) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        async with running(app):
            await app.publish_many("orders", numbered("abc"))
            await app.idle()
    assert collector.spans == {"publish orders", "lease orders", "process orders", "settle orders"}
    assert collector.sums["headrace.consumer.acked"] == 3
    assert collector.sums["messaging.client.sent.messages"] == 3


@pytest.mark.asyncio
async def test_a_collector_that_never_answers_stops_no_process(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    app = App(dsn, streams=["orders"], telemetry=Telemetry(traces="otlp", metrics="otlp", shutdown_timeout=0.2))
    seen: list[int] = []

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.append(number)

    def wait(_: BaseHTTPRequestHandler) -> None:
        over.wait()

    with serving(wait) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
        async with running(app):
            await app.publish_many("orders", numbered("abc"))
            await app.idle()
        over.set()
    assert seen == [1, 2, 3]
    assert logged(caplog, "telemetry exporter not finished in time", seconds=0.2)


@pytest.mark.asyncio
async def test_a_missing_collector_stops_no_process(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # without a listener
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        app = App(dsn, streams=["orders"], telemetry=Telemetry(traces="otlp", metrics="otlp", shutdown_timeout=0.2))
        seen: list[int] = []

        @app.consumer("orders")
        async def ship(number: int) -> None:
            seen.append(number)

        async with running(app):
            await app.publish_many("orders", numbered("abc"))
            await app.idle()
        logging.getLogger("opentelemetry").setLevel(logging.NOTSET)
    assert seen == [1, 2, 3]


@pytest.mark.asyncio
async def test_metrics_can_be_scraped_for_as_long_as_the_app_is_connected(dsn: str) -> None:
    app = App(dsn, streams=["orders"], telemetry=Telemetry(traces=None, metrics="prometheus", prometheus_port=0))

    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await app.idle()
        assert app._instruments is not None
        port = app._instruments.prometheus_port
        text = await anyio.to_thread.run_sync(scrape, port)
    assert "headrace_consumer_acked_total{" in text
    line = next(line for line in text.splitlines() if line.startswith("headrace_consumer_acked_total{"))
    assert 'messaging_consumer_group_name="ship"' in line
    assert line.endswith(" 3.0")
    with pytest.raises(OSError, match="refused"):
        await anyio.to_thread.run_sync(scrape, port)


def scrape(port: int) -> str:
    with urlopen(f"http://localhost:{port}/metrics", timeout=30) as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.asyncio
async def test_a_second_process_takes_the_next_port(dsn: str) -> None:
    async with App(dsn, telemetry=Telemetry(traces=None, metrics="prometheus", prometheus_port=0)) as first:
        assert first._instruments is not None
        port = first._instruments.prometheus_port
        assert port is not None
        async with App(dsn, telemetry=Telemetry(traces=None, metrics="prometheus", prometheus_port=port)) as second:
            assert second._instruments is not None
            assert second._instruments.prometheus_port is not None
            assert port < second._instruments.prometheus_port < port + 64


@pytest.mark.asyncio
async def test_a_host_that_is_not_ours_is_refused(dsn: str) -> None:
    telemetry = Telemetry(traces=None, metrics="prometheus", prometheus_host="192.0.2.1")
    with pytest.raises(ConfigurationError, match="can't be served on port 9464"):
        async with App(dsn, telemetry=telemetry):
            pass


@pytest.mark.asyncio
async def test_the_console_shows_everything(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = App(dsn, streams=["orders"], telemetry="console")

    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
    shown = capsys.readouterr().out
    assert '"name": "process orders"' in shown
    assert '"name": "headrace.consumer.acked"' in shown
