"""The instrumentation that the runtime calls when telemetry is on, see `headrace.runtime.instruments`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any

from opentelemetry.trace import Span

from headrace.model.records import Batch as Leased
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.telemetry import names
from headrace.telemetry.metering import Attributes, Call, MeasuredSample, Metering
from headrace.telemetry.observables import AppSource, consumer_attributes, observables_of
from headrace.telemetry.providers import Providers
from headrace.telemetry.settings import Statistics, Telemetry
from headrace.telemetry.tracing import Delivered, TraceSample, Tracing


class Sending:
    """A publish: the headers of its messages with the trace context, and the seq of a single message once it
    is known.
    """

    __slots__ = ("headers", "seq")

    def __init__(self, headers: Sequence[str | None]) -> None:
        self.headers = headers
        self.seq: int | None = None


class Instrumentation:
    """The telemetry of one app, while the app is connected.

    Args:
        telemetry: the settings.
        statistics: see `Telemetry.start`.

    Raises:
        ConfigurationError: the settings are invalid.
        ModuleNotFoundError: a part of OpenTelemetry is missing.
    """

    def __init__(self, telemetry: Telemetry, statistics: Statistics) -> None:
        self._providers = providers = Providers(telemetry)
        self._tracing = None if providers.tracer is None else Tracing(providers.tracer)
        self._metering = None
        self._source = AppSource(statistics)
        self._observables = None
        self.survey_every: float | None = None
        if providers.meter is not None:
            self._metering = Metering(providers.meter)
            self._observables = observables_of(providers.meters, providers.meter)
            self._observables.join(self._source, self._metering.instruments)
            self.survey_every = telemetry.survey

    @property
    def prometheus_port(self) -> int | None:
        """The port at which metrics can be scraped."""
        return self._providers.port

    def consumer_begins(self, spec: ConsumerSpec) -> None:
        """Keep the metrics of a consumer from now on."""
        self._source.consumers[spec.stream, spec.name] = spec

    def consumer_deleted(self, spec: ConsumerSpec) -> None:
        """Forget the metrics of a consumer, unless there is another pipeline for one of that name by now."""
        if self._source.consumers.get((spec.stream, spec.name)) is spec:
            del self._source.consumers[spec.stream, spec.name]

    def published(self) -> frozenset[str]:
        """The streams that were published to, and that are not known to be deleted."""
        return frozenset(self._source.streams)

    def surveyed(self, consumers: Iterable[ConsumerInfo], deleted: Iterable[str]) -> None:
        """Set the state of this app's consumers in the store, for the gauges, and forget the metrics of deleted streams."""
        self._source.surveyed = {(info.stream, info.name): info for info in consumers}
        self._source.streams.difference_update(deleted)

    def process(self, spec: ConsumerSpec, call: Call, *, batch: bool) -> Call:
        """Wrap the handler's call to measure and trace it."""
        attributes = _operation_attributes("process", "process", spec.stream, spec.name)
        if self._tracing is not None:
            call = self._tracing.process(spec, call, attributes, batch=batch)
        if self._metering is not None:
            call = self._metering.process(call, attributes)
        return call

    def sample(self, spec: ConsumerSpec, call: Call) -> Sample | None:
        """Return the sample of a consumer's messages that is measured and traced. None if each message is."""
        attributes = _operation_attributes("process", "process", spec.stream, spec.name)
        traces = None
        if self._tracing is not None:
            traces = self._tracing.sample(spec, call, attributes)
            if traces is None:
                return None
        if self._metering is None:
            return Sample(call, traces, None)
        metering = self._metering
        return Sample(call, traces, lambda call: metering.measured(call, attributes))

    @contextmanager
    def publishing(self, stream: str, headers: Sequence[str | None]) -> Iterator[Sending]:
        """Measure and trace a publish."""
        attributes = _operation_attributes("publish", "send", stream)
        with self._timed(attributes, stream, sent=len(headers)):
            if self._tracing is None:
                yield Sending(headers)
                return
            span_attributes = attributes if len(headers) == 1 else {**attributes, names.BATCH_COUNT: len(headers)}
            with self._tracing.publishing(stream, headers, span_attributes) as (span, headers_with_context):
                sending = Sending(headers_with_context)
                yield sending
                _set_message_id(span, stream, sending.seq)

    def leasing(self, spec: ConsumerSpec) -> Leasing:
        """Measure and trace a lease call. Pass the leased batch to the function that the context manager returns."""
        return Leasing(spec, self._tracing, self._metering)

    @contextmanager
    def settling(self, spec: ConsumerSpec, acked: int, failed: int, released: int) -> Iterator[None]:
        """Measure and trace a settle call."""
        attributes = _operation_attributes("settle", "settle", spec.stream, spec.name)
        with self._timed(attributes):
            if self._tracing is None:
                yield
                return
            outcomes = {names.ACKED: acked, names.FAILED: failed, names.RELEASED: released}
            with self._tracing.settling(spec, {**attributes, names.BATCH_COUNT: sum(outcomes.values()), **outcomes}):
                yield

    def dead_lettered(self, spec: ConsumerSpec, message: Delivered, reason: str, error: BaseException) -> None:
        """Trace that a message has become a dead letter."""
        if self._tracing is not None:
            attributes = _operation_attributes("dead_letter", "settle", spec.stream, spec.name)
            self._tracing.dead_lettered(spec, message, {**attributes, names.REASON: reason}, error)

    @contextmanager
    def _timed(self, attributes: Attributes, published: str | None = None, *, sent: int = 0) -> Iterator[None]:
        began = perf_counter()
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if self._metering is not None:
                if published is not None:
                    attributes = self._source.published(published, attributes, error)
                self._metering.operated(attributes, perf_counter() - began, error, sent=sent)

    async def flush(self) -> None:
        """Export what has been collected, within the shutdown timeout."""
        await self._providers.flush()

    async def stop(self) -> None:
        """Export what is left, within the shutdown timeout, and end."""
        try:
            await self._providers.stop()
        finally:
            if self._observables is not None:
                self._observables.leave(self._source)


class Sample:
    """The messages of one consumer that are observed. The handlers of all others are called as if telemetry was off.

    Args:
        call: the usual call of the handler.
        traces: chooses those that are traced. None to trace none.
        measured: wraps a call to measure it. None to measure none.
    """

    def __init__(self, call: Call, traces: TraceSample | None, measured: Callable[[Call], Call] | None) -> None:
        self._call = call
        self._traces = traces
        self._measured = measured
        self._measures = MeasuredSample()

    def choose(self, headers: Sequence[str | None]) -> Iterable[tuple[int, Call]]:
        """Choose among messages with these headers that are leased together. Returns their places, each with the call of
        its handler."""
        calls = {} if self._traces is None else self._traces.choose(headers)
        if self._measured is not None:
            for place in self._measures.choose(len(headers), perf_counter()):
                calls[place] = self._measured(calls.get(place, self._call))
        return calls.items()

    def enter_actor(self, in_work: Callable[[], Any]) -> None:
        """Prepare the actor that calls this. `in_work` returns the message that it works on."""
        if self._traces is not None:
            self._traces.enter_actor(in_work)


class Leasing:
    """Measures and traces a lease call when it has ended, but only if it leased something or failed. Most
    calls that wait for messages lease nothing.
    """

    def __init__(self, spec: ConsumerSpec, tracing: Tracing | None, metering: Metering | None) -> None:
        self._spec = spec
        self._tracing = tracing
        self._metering = metering
        self._leased: Leased | None = None

    def __enter__(self) -> Callable[[Leased], Any]:
        self._at, self._began = time_ns(), perf_counter()
        return self._record_leased

    def _record_leased(self, leased: Leased) -> None:
        if leased.lease_id is not None:
            self._leased = leased

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._leased is None and not isinstance(error, Exception):
            return
        attributes = _operation_attributes("lease", "receive", self._spec.stream, self._spec.name)
        if self._metering is not None:
            self._metering.operated(attributes, perf_counter() - self._began, error)
        if self._tracing is not None:
            count = 0 if self._leased is None else len(self._leased.seqs)
            self._tracing.leased(self._spec, self._leased, {**attributes, names.BATCH_COUNT: count}, self._at, error)


def _operation_attributes(name: str, kind: str, stream: str, consumer: str | None = None) -> dict[str, Any]:
    operation = {names.OPERATION_NAME: name, names.OPERATION_TYPE: kind}
    if consumer is not None:
        return {**consumer_attributes(stream, consumer), **operation}
    return {names.SYSTEM: names.SYSTEM_NAME, names.DESTINATION: stream, **operation}


def _set_message_id(span: Span, stream: str, seq: int | None) -> None:
    if seq is not None:
        span.set_attribute(names.MESSAGE_ID, names.message_id(stream, seq))
