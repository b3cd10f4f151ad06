"""Traces that the sampler drops, at no cost for their messages.

Where one trace in a hundred is sampled, nearly all work of the SDK is for spans that nobody sees: attributes, ids, a
result of the sampler and a context for each. A sampler by ratio decides by a new trace's random id alone. So it is drawn
here how many new traces are dropped up to the next sampled one, and a leased batch of messages is decided as a whole.
The handlers of all others are called as if telemetry was off. A span is still current in their actor, which has
the ids of the message in work. They are made for code that asks for them. Other samplers are asked as usual, because
their decisions may depend on anything.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from headrace.telemetry.carrier import NO_CONTEXT, latest_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator


class Ids:
    """An id generator that gives the next trace the id on which the sampler has decided already.

    Attributes:
        next_trace_id: this id, or None.
        generator: makes the ids.
        flags: those of a new trace that is dropped.
    """

    def __init__(self, generator: IdGenerator) -> None:
        self.next_trace_id: int | None = None
        self.generate_span_id = generator.generate_span_id
        self.generator = generator
        self.is_trace_id_random = generator.is_trace_id_random
        self.flags = TraceFlags(TraceFlags.RANDOM_TRACE_ID if generator.is_trace_id_random() else TraceFlags.DEFAULT)

    def generate_trace_id(self) -> int:
        chosen, self.next_trace_id = self.next_trace_id, None
        return self.generator.generate_trace_id() if chosen is None else chosen


class RatioSampling:
    """The decisions of a sampler by ratio about spans of messages. See `ratio_sampling`.

    Args:
        ids: those of the tracer.
        bound: a new trace is sampled if the lower 64 bits of its id are below it.
    """

    def __init__(self, ids: Ids, bound: int) -> None:
        self._ids = ids
        self._bound = bound
        self._left = self._draw()  # new traces to drop before the next that is sampled
        self._context_of = latest_context()

    def choose(self, headers: Sequence[str | None]) -> dict[int, Context]:
        """Decide on the messages with these headers. Returns the places of those that need a context of their own, each with
        the context of its headers: the sampled ones, and those with baggage."""
        if not any(headers):
            return dict.fromkeys(self._sampled(len(headers)), NO_CONTEXT)
        contexts = [NO_CONTEXT if text is None else self._context_of(text) for text in headers]
        begins = [place for place, context in enumerate(contexts) if context is NO_CONTEXT]
        chosen = {begins[place]: NO_CONTEXT for place in self._sampled(len(begins))}
        return chosen | {place: context for place, context in enumerate(contexts) if not _needs_no_other(context)}

    def begin_sampled(self) -> None:
        """Have the tracer sample the next span, if it begins a trace."""
        self._ids.next_trace_id = self._id(0, self._bound)

    def dropped(self, headers: str | None) -> SpanContext:
        """Return the context of a span of a message that was not chosen."""
        parent = get_current_span(NO_CONTEXT if headers is None else self._context_of(headers)).get_span_context()
        span_id = self._ids.generate_span_id()
        if not parent.is_valid:
            return SpanContext(self._id(self._bound, _LOWER_BITS + 1), span_id, False, self._ids.flags)
        return SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state)

    def _sampled(self, count: int) -> list[int]:
        """Return which of so many new traces are sampled."""
        sampled = []
        while self._left < count:
            sampled.append(int(self._left))
            self._left += 1 + self._draw()
        self._left -= count
        return sampled

    def _draw(self) -> float:
        """Draw how many traces are dropped before one is sampled, if each is decided by itself: a geometric distribution."""
        share = self._bound / (_LOWER_BITS + 1)
        if share <= 0:
            return math.inf
        return 0 if share >= 1 else int(math.log(1 - random.random()) / math.log1p(-share))

    def _id(self, lowest: int, above: int) -> int:
        """Return a trace id whose lower 64 bits are within these bounds."""
        upper = self._ids.generator.generate_trace_id() & ~_LOWER_BITS
        return upper | random.randrange(lowest, above)


class DroppedSpan(NonRecordingSpan):
    """The span that is current in an actor, outside the spans of sampled messages. It stands for the span of the message
    in work, which is dropped. That has ids once code asks for them: a span inside it, a message that is published in it,
    a log record.

    Args:
        sampling: makes the ids.
        in_work: returns the message that the actor works on. None in between.
    """

    def __init__(self, sampling: RatioSampling, in_work: Callable[[], Any]) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self._sampling = sampling
        self._in_work = in_work
        self._message: Any = None
        self._made = INVALID_SPAN_CONTEXT

    def get_span_context(self) -> SpanContext:
        message = self._in_work()
        if message is not self._message:
            self._message = message
            self._made = INVALID_SPAN_CONTEXT if message is None else self._sampling.dropped(message.raw_headers)
        return self._made

    def stand_for(self, message: Any, span: SpanContext) -> None:
        """Have the ids of the span of a message that was chosen, for what is logged about the message outside of it."""
        self._message, self._made = message, span

    def __repr__(self) -> str:
        return f"DroppedSpan({self.get_span_context()!r})"


_LOWER_BITS = (1 << 64) - 1
(_SPAN,) = set_span_in_context(INVALID_SPAN, NO_CONTEXT)  # the key by which a context has its span


def _needs_no_other(context: Context) -> bool:
    """Whether the handler of a message with this context needs no other one than that of its actor: it is empty, or has
    nothing but an unsampled span. Baggage would be missed."""
    return context is NO_CONTEXT or (context.keys() == {_SPAN} and is_unsampled(context))


def is_unsampled(context: Context) -> bool:
    """Whether spans in this context of a message are dropped, because the trace that it continues is."""
    parent = get_current_span(context).get_span_context()
    return parent.is_valid and parent.is_remote and not parent.trace_flags.sampled


def ratio_sampling(tracer: Any) -> RatioSampling | None:
    """The decisions of the tracer's sampler, if it is the SDK's for a ratio of all new traces, which follows the decision
    of the trace that a span continues (`parentbased_traceidratio`). None for other samplers.
    """
    sdk: Any = sys.modules.get("opentelemetry.sdk.trace")  # a tracer of the SDK has loaded it
    if sdk is None or type(tracer) is not sdk.Tracer:
        return None
    sampler, sampling = tracer.sampler, sdk.sampling
    if type(sampler).should_sample is not sampling.ParentBased.should_sample:
        return None
    root: Any = getattr(sampler, "_root", None)
    unsampled = getattr(sampler, "_remote_parent_not_sampled", None)
    if type(root) is not sampling.TraceIdRatioBased or unsampled is not sampling.ALWAYS_OFF:
        return None
    if not isinstance(tracer.id_generator, Ids):
        if type(tracer.id_generator) is not sdk.id_generator.RandomIdGenerator:
            return None  # its ids may have a meaning
        tracer.id_generator = Ids(tracer.id_generator)
    return RatioSampling(tracer.id_generator, root.bound)
