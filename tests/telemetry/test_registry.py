"""A Prometheus registry of the program's own receives the metrics, for a page of its own."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from headrace import App, Telemetry
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("metrics", [None, "prometheus"])
async def test_metrics_go_into_the_registry_and_no_port_is_opened(
    dsn: str, metrics: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(traces=None, metrics=metrics, prometheus_registry=registry)
    async with App(dsn, streams=["orders"], telemetry=telemetry).running() as app:
        await app.publish("orders", "a", 1)
        text = generate_latest(registry).decode()
        assert app._instruments is not None
        assert app._instruments.prometheus_port is None
    assert 'messaging_client_sent_messages_total{messaging_destination_name="orders"' in text
    assert "db_client_connection_max{" in text
    assert not logged(caplog, "serving metrics")


async def test_a_registry_gets_them_besides_an_exporter(dsn: str, capfd: pytest.CaptureFixture[str]) -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(traces=None, metrics="console", prometheus_registry=registry)
    async with App(dsn, streams=["orders"], telemetry=telemetry) as app:
        await app.publish("orders", "a", 1)
        assert "messaging_client_sent_messages_total" in generate_latest(registry).decode()
    assert "messaging.client.sent.messages" in capfd.readouterr().out
