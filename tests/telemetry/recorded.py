"""Telemetry that a test can read: the SDK's own providers, with exporters that keep everything in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from headrace import Telemetry


class Recorded:
    """Records all telemetry of an app.

    Attributes:
        telemetry: The setting for an `App`.
    """

    def __init__(self, *, traces: bool = True, metrics: bool = True, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(traces=self.tracers if traces else None, metrics=self.meters if metrics else None)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """The ended spans, in the order in which they began."""
        found = [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        (span,) = self.spans(name)
        return span

    def points(self, name: str) -> list[Any]:
        """Return the current data points of a metric."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def value(self, name: str, /, **attributes: str) -> Any:
        """Return the value of the only data point with these attributes, given by the last words of their names."""
        (point,) = [point for point in self.points(name) if _matches(point.attributes, attributes)]
        return point.value


def _matches(attributes: Mapping[str, Any], exporter: Mapping[str, str]) -> bool:
    return all(
        any(name.rpartition(".")[2] == word and value == attributes[name] for name in attributes)
        for word, value in exporter.items()
    )


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert parent.context is not None
    return (
        span.parent is not None and span.parent.span_id == parent.context.span_id and trace_of(span) == trace_of(parent)
    )


def linked(span: ReadableSpan) -> list[int]:
    """Return the ids of the spans to which a span links."""
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id
