"""Spans of publish calls, lease calls, handlers and settle calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, Status, StatusCode, Tracer

from headrace.model.outcomes import Reject, Retry, Snooze, deciding
from headrace.model.records import Batch as Leased
from headrace.model.specs import ConsumerSpec
from headrace.model.text.error_text import error_type
from headrace.telemetry import names
from headrace.telemetry.carrier import NO_CONTEXT, extract, inject, latest_context, link_in, links_of
from headrace.telemetry.sampling import DroppedSpan, RatioSampling, is_unsampled, ratio_sampling

Call = Callable[[Any, Any], Awaitable[Any]]
CallInSpan = Callable[[Context, Any, Any], Awaitable[Any]]
Attributes = Mapping[str, Any]


class Delivered(Protocol):
    """A message, with the properties that its span records."""

    @property
    def key(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def raw_headers(self) -> str | None: ...


class Tracing:
    """Makes spans.

    Args:
        tracer: creates the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sampling = ratio_sampling(tracer)

    @contextmanager
    def publishing(
        self, stream: str, headers: Sequence[str | None], attributes: Attributes
    ) -> Iterator[tuple[Span, list[str | None]]]:
        """Make a span around a publish, in the current trace. Also returns the headers with the trace context."""
        links = links_of(stream, enumerate(headers), named=False)  # links to the contexts that the user put there
        span = self._tracer.start_span(f"publish {stream}", kind=SpanKind.PRODUCER, attributes=attributes, links=links)
        with _Current(span):
            yield span, inject(headers, trace.set_span_in_context(span))

    def leased(
        self, spec: ConsumerSpec, leased: Leased | None, attributes: Attributes, began: int, error: BaseException | None
    ) -> None:
        """Make the span of a lease call that has ended. The call leased messages or failed.

        Args:
            began: nanoseconds since the epoch.
        """
        links = []
        if leased is not None and any(leased.headers):
            links = links_of(spec.stream, zip(leased.seqs, leased.headers, strict=True))
        span = self._tracer.start_span(
            f"lease {spec.stream}", NO_CONTEXT, SpanKind.CLIENT, attributes=attributes, links=links, start_time=began
        )
        _record_error(span, error)
        span.end()

    @contextmanager
    def settling(self, spec: ConsumerSpec, attributes: Attributes) -> Iterator[None]:
        """Make a span around a settle call."""
        with _Current(
            self._tracer.start_span(f"settle {spec.stream}", NO_CONTEXT, SpanKind.CLIENT, attributes=attributes)
        ):
            yield

    def process(self, spec: ConsumerSpec, call: Call, attributes: Attributes, *, batch: bool) -> Call:
        """Wrap the handler's call in a span, which is current while the call runs.

        The span of a single message continues the trace that published the message, and also links to it.
        The span of a batch starts a new trace, and links to the traces of its messages.
        """
        begin = self._begin(spec)
        return (
            _of_batches(spec.stream, call, begin, attributes)
            if batch
            else _of_messages(_in_span(spec.stream, call, begin, attributes))
        )

    def sample(self, spec: ConsumerSpec, call: Call, attributes: Attributes) -> TraceSample | None:
        """Return the sampled messages of a consumer. None if the sampler must be asked for each span, see `process`."""
        if self._sampling is None:
            return None
        return TraceSample(self._sampling, call, _in_span(spec.stream, call, self._begin(spec), attributes))

    def _begin(self, spec: ConsumerSpec) -> Callable[..., Span]:
        return partial(self._tracer.start_span, f"process {spec.stream}", kind=SpanKind.CONSUMER)

    def dead_lettered(
        self, spec: ConsumerSpec, message: Delivered, attributes: Attributes, error: BaseException
    ) -> None:
        """Make a span without a duration in the trace that published the message: it has become a dead letter."""
        span = self._tracer.start_span(
            f"dead-letter {spec.stream}", extract(message.raw_headers), SpanKind.INTERNAL, attributes=attributes
        )
        span.set_attribute(names.MESSAGE_ID, names.message_id(spec.stream, message.seq))
        span.set_attribute(names.KEY, message.key)
        span.set_attribute(names.ATTEMPT, message.attempt)
        _record_error(span, error)
        span.end()


class TraceSample:
    """The messages of a consumer whose spans are sampled.

    Args:
        sampling: chooses them.
        call: calls the handler.
        in_span: calls it in a span.
    """

    def __init__(self, sampling: RatioSampling, call: Call, in_span: CallInSpan) -> None:
        self._sampling = sampling
        self._call = call
        self._in_span = in_span

    def choose(self, headers: Sequence[str | None]) -> dict[int, Call]:
        """Return the places of those among the messages with these headers, each with the call of its handler. Messages
        that are dropped are among them if they have baggage."""
        return {place: self._call_in(context) for place, context in self._sampling.choose(headers).items()}

    def _call_in(self, context: Context) -> Call:
        if context is NO_CONTEXT:
            return self._first
        return partial(self._in_dropped if is_unsampled(context) else self._in_span, context)

    def enter_actor(self, in_work: Callable[[], Any]) -> None:
        """Make the span of dropped messages current in the actor that calls this. `in_work` returns its message."""
        attach(trace.set_span_in_context(DroppedSpan(self._sampling, in_work), NO_CONTEXT))

    def _first(self, payload: Any, message: Any) -> Awaitable[Any]:
        self._sampling.begin_sampled()
        return self._in_span(NO_CONTEXT, payload, message)

    async def _in_dropped(self, context: Context, payload: Any, message: Any) -> Any:
        span = NonRecordingSpan(self._sampling.dropped(message.raw_headers))
        return await _called_in(span, context, self._call, payload, message)


def _of_messages(call: CallInSpan) -> Call:
    context_of = latest_context()

    def traced(payload: Any, message: Any) -> Awaitable[Any]:
        headers = message.raw_headers
        return call(NO_CONTEXT if headers is None else context_of(headers), payload, message)

    return traced


def _in_span(stream: str, call: Call, begin: Callable[..., Span], attributes: Attributes) -> CallInSpan:
    """Return the call of a handler in a span of its message, which continues a context."""

    def traced(context: Context, payload: Any, message: Any) -> Awaitable[Any]:
        link = None if context is NO_CONTEXT else link_in(context)
        span = begin(
            context,
            attributes={
                **attributes,
                names.MESSAGE_ID: names.message_id(stream, message.seq),
                names.KEY: message.key,
                names.ATTEMPT: message.attempt,
            },
            links=None if link is None else (link,),
        )
        outside = trace.get_current_span()
        if isinstance(outside, DroppedSpan):
            outside.stand_for(message, span.get_span_context())
        return _called_in(span, context, call, payload, message)

    return traced


def _of_batches(stream: str, call: Call, begin: Callable[..., Span], attributes: Attributes) -> Call:
    async def traced(payload: Any, batch: Any) -> Any:
        span = begin(
            NO_CONTEXT,
            attributes={**attributes, names.BATCH_COUNT: len(batch.messages)},
            links=links_of(stream, ((m.seq, m.raw_headers) for m in batch.messages)),
        )
        return await _called_in(span, NO_CONTEXT, call, payload, batch)

    return traced


async def _called_in(span: Span, context: Context, call: Call, payload: Any, delivery: Any) -> Any:
    with _Current(span, context):
        result = await call(payload, delivery)
        if isinstance(result, (Retry, Reject)):
            _record_error(span, result)
        return result


class _Current:
    """Makes a span current in a context, and ends it afterwards. Records an exception."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, context: Context | None = None) -> None:
        self._span = span
        self._context = context

    def __enter__(self) -> Span:
        self._token = attach(trace.set_span_in_context(self._span, self._context))
        return self._span

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        try:
            _record_error(self._span, error)
        finally:
            detach(self._token)
            self._span.end()


def _record_error(span: Span, raised: BaseException | None) -> None:
    if raised is None or isinstance(error := deciding(raised), Snooze) or not span.is_recording():
        return
    span.set_attribute(names.ERROR_TYPE, error_type(error))
    with suppress(Exception):  # an exception's own __str__ may raise
        span.set_status(Status(StatusCode.ERROR, str(error)))
        if not isinstance(error, (Retry, Reject)):  # these are requested outcomes
            span.record_exception(error)
