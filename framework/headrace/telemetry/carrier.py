"""The trace in a message's headers: put there and found again by the program's global propagator, W3C's unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link

from headrace.telemetry.names import MESSAGE_ID, message_id

MOST_LINKS = 128
"""Links of one span; OpenTelemetry keeps no more unless it is told to."""

MOST_LOOKS = 1024
"""Messages of a lease or a batch whose headers are looked at for where they come from: to read thousands would hold up the event loop."""

NOWHERE = Context()
"""No trace. What a consumer does belongs to that of the message, not to what was current when the app was started."""

_decode = msgspec.json.Decoder(dict[str, object]).decode  # the store takes objects only


def inject(headers: Sequence[str | None], context: Context) -> list[str | None]:
    """The headers with the trace in them. Those that have one, as a user may have put it there, stay as they are."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    if not carrier:
        return list(headers)
    alone = _encode(carrier)
    return [
        alone if text is None else text if link_in(extract(text)) else _encode({**_decode(text), **carrier})
        for text in headers
    ]


def extract(headers: str | None) -> Context:
    """The trace that a message's headers carry."""
    if headers is None or not any(field in headers for field in propagate.get_global_textmap().fields):
        return NOWHERE
    strings = {name: value for name, value in _decode(headers).items() if isinstance(value, str)}
    return propagate.extract(strings, NOWHERE)


def link_in(made: Context, attributes: Mapping[str, str] | None = None) -> Link | None:
    """A link to the span that is in a context, if there is one."""
    span = trace.get_current_span(made).get_span_context()
    return Link(span, attributes) if span.is_valid else None


def links_of(stream: str, messages: Iterable[tuple[int, str | None]], *, named: bool = True) -> list[Link]:
    """A link for each place where messages were made, and no more than are kept.

    Args:
        messages: (seq, headers).
        named: whether a link names the first message from there.
    """
    links: dict[tuple[int, int], Link] = {}
    last: str | None = None
    for seq, headers in islice(messages, MOST_LOOKS):
        if headers is None or headers == last:  # as it is of those that were published together
            continue
        last = headers
        link = link_in(extract(headers), {MESSAGE_ID: message_id(stream, seq)} if named else None)
        if link is not None:
            links.setdefault((link.context.trace_id, link.context.span_id), link)
            if len(links) == MOST_LINKS:
                break
    return list(links.values())


def _encode(headers: Mapping[str, object]) -> str:
    return msgspec.json.encode(headers).decode()
