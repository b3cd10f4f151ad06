"""Spans that the sampler drops, at little cost.

Where one trace in a hundred is sampled, nearly all work of the SDK is for spans that nobody sees: attributes, ids, a
result of the sampler and a context for each. A sampler by ratio decides by a new trace's random id alone. So the number
of new traces up to the next sampled one is drawn first here, and the id and the rest are only made for those who ask for
them. Other samplers are asked as usual, because theirs may depend on anything.
"""

from __future__ import annotations

import math
import random
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from headrace.telemetry.carrier import NO_CONTEXT

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator


class DroppedSpan(NonRecordingSpan):
    """A span that is not sampled. Its context is made when somebody asks for it: a span inside it, a message that
    is published in it, a log record.

    Attributes:
        sampling: makes its ids.
        parent: the span that it continues. None if it begins a trace.
    """

    sampling: RatioSampling
    parent: SpanContext | None = None
    _made: SpanContext | None = None

    def get_span_context(self) -> SpanContext:
        if self._made is None:
            ids, parent = self.sampling.ids, self.parent
            if parent is None:
                self._made = SpanContext(self.sampling.dropped_id(), ids.generate_span_id(), False, ids.flags)
            else:
                self._made = SpanContext(
                    parent.trace_id, ids.generate_span_id(), False, parent.trace_flags, parent.trace_state
                )
        return self._made

    def __repr__(self) -> str:
        return f"DroppedSpan({self.get_span_context()!r})"


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
        self.ids = ids
        self._bound = bound
        made: type[DroppedSpan] = type("DroppedSpan", (DroppedSpan,), {"sampling": self})
        self._dropped = partial(object.__new__, made)  # without the initialiser, which takes a context
        self._left = self._draw()  # new traces to drop before the next that is sampled

    def drop_new(self) -> Context | None:
        """Return a context with a span that begins a trace, if the sampler drops it. None if the tracer is to make it at
        once, as the decision is about the next span of the tracer."""
        if self._left:
            self._left -= 1
            return Context({_SPAN: self._dropped()})
        self._left = self._draw()
        self.ids.next_trace_id = self._id(0, self._bound)
        return None

    def drop(self, context: Context) -> Context | None:
        """Return the context with a span that continues its trace, if the sampler drops it. None if the tracer is to make
        it."""
        if context is NO_CONTEXT:
            return self.drop_new()
        parent = get_current_span(context).get_span_context()
        if not parent.is_valid or not parent.is_remote or parent.trace_flags.sampled:
            return None
        span = self._dropped()
        span.parent = parent
        return set_span_in_context(span, context)

    def dropped_id(self) -> int:
        """Return the id of a new trace that is dropped."""
        return self._id(self._bound, _LOWER_BITS + 1)

    def _draw(self) -> float:
        """Draw how many traces are dropped before one is sampled, if each is decided by itself: a geometric distribution."""
        share = self._bound / (_LOWER_BITS + 1)
        if share <= 0:
            return math.inf
        return 0 if share >= 1 else int(math.log(1 - random.random()) / math.log1p(-share))

    def _id(self, lowest: int, above: int) -> int:
        """Return a trace id whose lower 64 bits are within these bounds."""
        upper = self.ids.generator.generate_trace_id() & ~_LOWER_BITS
        return upper | random.randrange(lowest, above)


_LOWER_BITS = (1 << 64) - 1
(_SPAN,) = set_span_in_context(INVALID_SPAN, NO_CONTEXT)  # the key by which a context has its span


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
