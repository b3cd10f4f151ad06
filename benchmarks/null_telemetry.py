"""Telemetry for a measured worker: the SDK's own providers, with exporters that discard everything.

A benchmark thus measures what telemetry costs the worker, without the cost of sending it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

from benchmarks.wire import TelemetryMode
from headrace import Telemetry

COLLECT = 1000.0
"""Milliseconds between two collections of metrics: far more often than usual, so that the cost shows."""

SHARE = 0.01
"""The sampled share of traces."""


class _NoMetrics(MetricExporter):
    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None: ...


class _NoSpans(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def telemetry(telemetry_mode: TelemetryMode) -> Telemetry:
    """The telemetry of a worker."""
    if telemetry_mode == "metrics":
        reader = PeriodicExportingMetricReader(_NoMetrics(), export_interval_millis=COLLECT)
        return Telemetry(traces=None, metrics=MeterProvider([reader], shutdown_on_exit=False))
    sampler = ALWAYS_ON if telemetry_mode == "traces" else ParentBased(TraceIdRatioBased(SHARE))
    tracers = TracerProvider(sampler, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(_NoSpans()))
    return Telemetry(traces=tracers, metrics=None)
