"""Spans of publish calls, lease calls, handlers and settle calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from headrace.model.outcomes import Reject, Retry, Snooze
from headrace.model.records import Batch as Leased
from headrace.model.specs import ConsumerSpec
from headrace.model.text.error_text import error_type
from headrace.telemetry import names
from headrace.telemetry.carrier import NO_CONTEXT, extract, inject, latest_context, link_in, links_of
from headrace.telemetry.sampling import RatioSampling, ratio_sampling

Call = Callable[[Any, Any], Awaitable[Any]]
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
        with _as_current(span):
            yield span, inject(headers, trace.set_span_in_context(span))

    def leased(
        self, spec: ConsumerSpec, leased: Leased | None, attributes: Attributes, began: int, error: BaseException | None
    ) -> None:
        """Make the span of a lease call that has ended. The call leased messages or failed.

        Args:
            began: nanoseconds since the epoch.
        """
        links = [] if leased is None else links_of(spec.stream, zip(leased.seqs, leased.headers, strict=True))
        span = self._tracer.start_span(
            f"lease {spec.stream}", NO_CONTEXT, SpanKind.CLIENT, attributes=attributes, links=links, start_time=began
        )
        _record_error(span, error)
        span.end()

    @contextmanager
    def settling(self, spec: ConsumerSpec, attributes: Attributes) -> Iterator[None]:
        """Make a span around a settle call."""
        with _as_current(
            self._tracer.start_span(f"settle {spec.stream}", NO_CONTEXT, SpanKind.CLIENT, attributes=attributes)
        ):
            yield

    def process(self, spec: ConsumerSpec, call: Call, attributes: Attributes, *, batch: bool) -> Call:
        """Wrap the handler's call in a span, which is current while the call runs.

        The span of a single message continues the trace that published the message, and also links to it.
        The span of a batch starts a new trace, and links to the traces of its messages.
        """
        begin = partial(
            self._tracer.start_span, f"process {spec.stream}", kind=SpanKind.CONSUMER, attributes=attributes
        )
        return (
            _of_batches(spec.stream, call, begin) if batch else _of_messages(spec.stream, call, begin, self._sampling)
        )

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


def _of_messages(stream: str, call: Call, begin: Callable[..., Span], sampling: RatioSampling | None) -> Call:
    context_of = latest_context()

    def traced(payload: Any, message: Any) -> Awaitable[Any]:
        headers = message.raw_headers
        context = NO_CONTEXT if headers is None else context_of(headers)
        if sampling is not None:
            dropped = sampling.drop_new() if headers is None else sampling.drop(context)
            if dropped is not None:
                attach(dropped)  # until the next message of this actor
                return call(payload, message)
        return in_span(context, payload, message)

    async def in_span(context: Context, payload: Any, message: Any) -> Any:
        link = None if context is NO_CONTEXT else link_in(context)
        span = begin(context, links=None if link is None else (link,))
        if span.is_recording():
            span.set_attribute(names.MESSAGE_ID, names.message_id(stream, message.seq))
            span.set_attribute(names.KEY, message.key)
            span.set_attribute(names.ATTEMPT, message.attempt)
        return await _called_in(span, context, call, payload, message)

    return traced


def _of_batches(stream: str, call: Call, begin: Callable[..., Span]) -> Call:
    async def traced(payload: Any, batch: Any) -> Any:
        span = begin(NO_CONTEXT, links=links_of(stream, ((m.seq, m.raw_headers) for m in batch.messages)))
        span.set_attribute(names.BATCH_COUNT, len(batch.messages))
        return await _called_in(span, NO_CONTEXT, call, payload, batch)

    return traced


async def _called_in(span: Span, context: Context, call: Call, payload: Any, delivery: Any) -> Any:
    with _as_current(span, context):
        result = await call(payload, delivery)
        if isinstance(result, (Retry, Reject)):
            _record_error(span, result)
        return result


@contextmanager
def _as_current(span: Span, context: Context | None = None) -> Iterator[Span]:
    """Make the span current in a context, and end it afterwards. Records an exception."""
    token = attach(trace.set_span_in_context(span, context))
    try:
        yield span
    except BaseException as error:
        _record_error(span, error)
        raise
    finally:
        detach(token)
        span.end()


def _record_error(span: Span, error: BaseException | None) -> None:
    if error is None or isinstance(error, Snooze) or not span.is_recording():
        return
    span.set_attribute(names.ERROR_TYPE, error_type(error))
    with suppress(Exception):  # an exception's own __str__ may raise
        span.set_status(Status(StatusCode.ERROR, str(error)))
        if not isinstance(error, (Retry, Reject)):  # these are requested outcomes
            span.record_exception(error)
