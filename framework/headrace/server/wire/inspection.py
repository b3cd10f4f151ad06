"""API types of journeys and searches."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from headrace.model.records import Erasure
from headrace.model.watching.journeys import Journey, JourneyStop, Trace
from headrace.model.watching.operations import PushStatus, SearchStep
from headrace.server.wire.messages import Message


class LinkedTrace(Struct, kw_only=True):
    """The trace in which a message was published."""

    trace_id: str
    span_id: str
    url: Annotated[str | None, Meta(description="Where to see it, if the server has the option `trace_url`.")]


class TracedMessage(Message, kw_only=True):
    """A message, with the trace in which it was published."""

    trace: Annotated[LinkedTrace | None, Meta(description="From the header `traceparent`.")]


class MessageJourney(Struct, kw_only=True):
    """A message, and what became of it in each consumer."""

    seq: int
    message: Annotated[TracedMessage | None, Meta(description="Null if it is no longer in the stream.")]
    gone: Annotated[
        Literal["erased", "removed"] | None,
        Meta(
            description="Why it is no longer in the stream. `removed` by retention, or by a newer message of its key."
        ),
    ]
    erased: Annotated[Erasure | None, Meta(description="The trace of an erased message.")]
    consumers: Annotated[
        list[JourneyStop],
        Meta(
            description="By name. Of a message that is gone, only those that have it still, have missed it, or have it in their history."
        ),
    ]
    next: Annotated[str | None, Meta(description="Given if there are more consumers: send it as `after`.")]

    @classmethod
    def of(cls, journey: Journey, stream_id: str, trace_url: str | None = None) -> MessageJourney:
        """Convert a journey whose message is undecoded. `trace_url`: the option of the server."""
        message = None
        if journey.message is not None:
            trace = None if journey.trace is None else _linked(journey.trace, trace_url)
            message = TracedMessage(**structs.asdict(Message.of(journey.message, stream_id)), trace=trace)
        rest = {name: getattr(journey, name) for name in ("seq", "gone", "erased", "consumers", "next")}
        return cls(message=message, **rest)


def _linked(trace: Trace, trace_url: str | None) -> LinkedTrace:
    url = None if trace_url is None else trace_url.replace("{trace_id}", trace.trace_id)
    return LinkedTrace(trace_id=trace.trace_id, span_id=trace.span_id, url=url)


class JourneyAnswer(Struct):
    """A message, and what became of it in each consumer."""

    data: MessageJourney


class SearchAnswer(Struct, kw_only=True):
    """One step of a search."""

    data: Annotated[list[Message], Meta(description="The messages that match, in the order in which they were found.")]
    examined: Annotated[int, Meta(description="The number of messages that the step examined.")]
    position: Annotated[
        int, Meta(description="Send it as `before` for the next step, or as `after` if you search upwards.")
    ]
    more: Annotated[bool, Meta(description="Whether there may be more.")]
    remaining: Annotated[int, Meta(description="About how many messages are still to be examined.")]

    @classmethod
    def of(cls, step: SearchStep, stream_id: str) -> SearchAnswer:
        """Convert a step whose messages are undecoded."""
        messages = [Message.of(message, stream_id) for message in step.messages]
        return cls(
            data=messages, examined=step.examined, position=step.position, more=step.more, remaining=step.remaining
        )


class PushStatusAnswer(Struct):
    """The activity of a push consumer."""

    data: PushStatus
