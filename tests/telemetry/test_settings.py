"""Settings of telemetry, and the errors for invalid ones."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from headrace import App, ConfigurationError, Telemetry
from headrace.telemetry.settings import OFF


@pytest.mark.parametrize(
    ("given", "traces", "metrics"),
    [
        (True, "global", "global"),
        ("global", "global", "global"),
        ("otlp", "otlp", "otlp"),
        ("console", "console", "console"),
        ("prometheus", None, "prometheus"),
        ("otlp,prometheus", "otlp", "prometheus"),
        (" OTLP , Prometheus ", "otlp", "prometheus"),
        (Telemetry(traces="otlp", metrics=None), "otlp", None),
    ],
)
def test_a_setting_is_one_or_two_words(given: Any, traces: str | None, metrics: str | None) -> None:
    telemetry = Telemetry.of(given, {})
    assert telemetry is not None
    assert (telemetry.traces, telemetry.metrics) == (traces, metrics)


@pytest.mark.parametrize("given", [None, False, *sorted(OFF), "Off", Telemetry(traces=None, metrics=None)])
def test_nothing_is_recorded_unless_it_is_wanted(given: Any) -> None:
    assert Telemetry.of(given, {}) is None


def test_opentelemetrys_own_variables_choose_another_exporter() -> None:
    telemetry = Telemetry.of("otlp", {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "prometheus"})
    assert telemetry is not None
    assert (telemetry.traces, telemetry.metrics) == (None, "prometheus")
    assert Telemetry.of("otlp", {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}) is None


def test_a_provider_of_the_users_is_taken_as_it_is() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert Telemetry(traces=provider, metrics=None).traces is provider


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: App(telemetry="jaeger"), "'jaeger', which is unknown. Use off, global, otlp, prometheus, console"),
        (lambda: App(telemetry=7), "telemetry=7 is invalid. It must be a Telemetry"),  # type: ignore[arg-type]
        (
            lambda: Telemetry(traces="prometheus"),
            "traces='prometheus' is invalid. It must be one of 'global', 'otlp', 'console', a TracerProvider",
        ),
        (lambda: Telemetry(metrics=object()), "metrics=<object"),
        (lambda: Telemetry(prometheus_port=70000), "It must be a port"),
        (lambda: Telemetry(max_series=0), "max_series=0 is invalid. It must be from 1 to 1,000,000"),
        (lambda: Telemetry(survey=0), "survey=0 is invalid. It must be from 0.1 s"),
        (lambda: Telemetry(shutdown_timeout=-1), "shutdown_timeout=-1 of telemetry"),
    ],
)
def test_an_invalid_setting_is_reported_at_once(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match="^[^\n]*" + says.replace("(", r"\(")):
        make()


@pytest.mark.asyncio
async def test_the_environment_turns_it_on_and_an_argument_off_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TELEMETRY", "jaeger")
    with pytest.raises(ConfigurationError, match="jaeger"):
        async with App(dsn):
            pass
    async with App(dsn, telemetry=False):
        pass


@pytest.mark.asyncio
async def test_without_opentelemetry_the_extra_is_named(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("headrace.telemetry.")]:
        if name != "headrace.telemetry.settings":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[telemetry\]'"):
        async with App(dsn, telemetry=True):
            pass
    async with App(dsn):
        pass


@pytest.mark.asyncio
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
async def test_a_protocol_that_we_do_not_speak_is_refused(
    dsn: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "grpc")
    with pytest.raises(ConfigurationError, match=f"{variable}='grpc'"):
        async with App(dsn, telemetry="otlp"):
            pass


@pytest.mark.asyncio
async def test_a_port_in_the_environment_that_is_none_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "http")
    with pytest.raises(
        ConfigurationError, match=r"OTEL_EXPORTER_PROMETHEUS_PORT='http' is invalid\. It must be a port"
    ):
        async with App(dsn, telemetry="prometheus"):
            pass
