"""The settings of telemetry, from an argument of `App` or from text in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.model.errors import ConfigurationError

TRACES = ("global", "otlp", "console")
METRICS = ("global", "otlp", "prometheus", "console")
Statistics = Callable[[], Mapping[str, Any]]
"""The type of `App.statistics`: "consumers", by stream:name, "connections", and more."""

MAX_SERIES = 1_000_000
"""The highest limit of series of one metric. One takes about 2 kB of memory."""

OFF = frozenset(("off", "none", "false", "no", "0"))


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """Which telemetry to export, and where to. `traces` and `metrics` each are one of

        "global"      the providers that the program has set up for all libraries, as `opentelemetry-instrument` does
        "otlp"        a collector, by HTTP. `OTEL_EXPORTER_OTLP_ENDPOINT` and similar variables give its address
        "prometheus"  metrics only: a port of this process, to be scraped
        "console"     standard output
        a provider    your own `TracerProvider` or `MeterProvider`, which you have to shut down
        None          no export

    Args:
        traces: where spans go.
        metrics: where counters, gauges and histograms go.
        prometheus_host: the host on which the port listens. By default `OTEL_EXPORTER_PROMETHEUS_HOST`, or
            else localhost.
        prometheus_port: the port. By default `OTEL_EXPORTER_PROMETHEUS_PORT`, or else 9464. 0 for any free
            port. If several processes run, each takes the first free port from this one on.
        prometheus_registry: a `CollectorRegistry` of prometheus_client, which also gets the metrics. With
            "prometheus" it replaces the port. For programs that serve their own metrics page.
        max_series: the largest number of series of one metric: of consumers, and of streams that are published to, each
            with the errors that it had. OpenTelemetry folds further ones into one series. For the providers that Headrace
            sets up.
        survey: seconds between two surveys of the consumers in the store, which measure lag, parked and
            blocked messages.
        shutdown_timeout: seconds that exporters have at shutdown to send what they still hold.

    Raises:
        ConfigurationError: a value is invalid.
    """

    traces: Any = "global"
    metrics: Any = "global"
    prometheus_host: str | None = None
    prometheus_port: int | None = None
    prometheus_registry: Any = None
    max_series: int = 20_000
    survey: float = 10.0
    shutdown_timeout: float = 5.0

    def __post_init__(self) -> None:
        _check("traces", self.traces, TRACES, "get_tracer", "TracerProvider")
        _check("metrics", self.metrics, METRICS, "get_meter", "MeterProvider")
        if self.prometheus_port is not None and not 0 <= self.prometheus_port <= 65535:
            raise ConfigurationError(
                f"prometheus_port={self.prometheus_port} is invalid. It must be a port, or 0 for any."
            )
        if not 1 <= self.max_series <= MAX_SERIES:
            raise ConfigurationError(f"max_series={self.max_series} is invalid. It must be from 1 to {MAX_SERIES:,}.")
        if not 0.1 <= self.survey <= 3600:
            raise ConfigurationError(f"survey={self.survey:g} is invalid. It must be from 0.1 s to an hour.")
        if not 0 <= self.shutdown_timeout <= 300:
            raise ConfigurationError(
                f"shutdown_timeout={self.shutdown_timeout:g} of telemetry is invalid. It must be from 0 to 300 seconds."
            )

    @classmethod
    def of(cls, given: Telemetry | str | bool | None, environment: Mapping[str, str] = os.environ) -> Telemetry | None:
        """Convert what `App` takes. Returns None if telemetry is off.

        Args:
            given: a `Telemetry`, True for the program's global providers, False or None for none, or text
                as in `HEADRACE_TELEMETRY`: "off", "otlp", "prometheus", or "otlp,prometheus" for traces and
                metrics.
            environment: with text, `OTEL_TRACES_EXPORTER` and `OTEL_METRICS_EXPORTER` in it override the exporters.

        Raises:
            ConfigurationError: the value is something else.
        """
        if isinstance(given, str):
            return _from_text(given, environment)
        if given is None or isinstance(given, bool):
            return cls() if given else None
        if isinstance(given, Telemetry):
            exporter = (given.traces, given.metrics, given.prometheus_registry)
            return given if any(one is not None for one in exporter) else None
        raise ConfigurationError(
            f"telemetry={given!r} is invalid. It must be a Telemetry(…), text such as 'otlp', True, False or None."
        )


def _check(setting: str, value: Any, names: tuple[str, ...], method: str, provider: str) -> None:
    if value is None or value in names or (not isinstance(value, str) and hasattr(value, method)):
        return
    raise ConfigurationError(
        f"{setting}={value!r} is invalid. It must be one of {', '.join(map(repr, names))}, a {provider}, or None."
    )


def _from_text(text: str, environment: Mapping[str, str]) -> Telemetry | None:
    words = [word.strip().lower() for word in text.split(",")]
    if len(words) == 1 and words[0] in OFF:
        return None
    unknown = [word for word in words if word not in METRICS]
    if unknown:
        raise ConfigurationError(
            f"telemetry={text!r} contains {unknown[0]!r}, which is unknown. Use off, {', '.join(METRICS)}, or two of them for traces"
            " and metrics, such as 'otlp,prometheus'."
        )
    traces = next((word for word in words if word in TRACES), None)
    metrics = words[-1]
    return Telemetry.of(
        Telemetry(
            traces=_exporter(environment, "OTEL_TRACES_EXPORTER", traces),
            metrics=_exporter(environment, "OTEL_METRICS_EXPORTER", metrics),
        )
    )


def _exporter(environment: Mapping[str, str], variable: str, named: str | None) -> str | None:
    """The exporter of a signal. OpenTelemetry's own variable overrides the named one, unless that is "global"
    or none.
    """
    if named is None or named == "global":
        return named
    chosen = environment.get(variable, "").strip().lower()
    return None if chosen == "none" else chosen or named
