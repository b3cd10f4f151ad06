"""Trace context in message headers, written and read by the program's global propagator, which is W3C's by default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import msgspec
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link

from headrace.telemetry.names import MESSAGE_ID, message_id

MAX_LINKS = 128
"""The maximum number of links of one span. OpenTelemetry's default limit is the same."""

MAX_HEADERS_READ = 1024
"""The maximum number of headers of a lease or batch that are read for links. Reading thousands would
block the event loop.
"""

NO_CONTEXT = Context()
"""An empty context. Spans of a consumer belong to the trace of the message, not to the one that was current
when the app started.
"""

_decode = msgspec.json.Decoder(dict[str, object]).decode  # the store accepts objects only


def inject(headers: Sequence[str | None], context: Context) -> list[str | None]:
    """Add the trace context to the headers. Headers that have one already, for example from the user, stay
    unchanged.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    if not carrier:
        return list(headers)
    encoded = _encode(carrier)
    return [
        encoded if text is None else text if link_in(extract(text)) else _encode({**_decode(text), **carrier})
        for text in headers
    ]


def extract(headers: str | None) -> Context:
    """The trace context in a message's headers."""
    if headers is None or not any(field in headers for field in propagate.get_global_textmap().fields):
        return NO_CONTEXT
    strings = {name: value for name, value in _decode(headers).items() if isinstance(value, str)}
    return propagate.extract(strings, NO_CONTEXT)


def latest_context() -> Callable[[str], Context]:
    """A function like `extract` that remembers its latest result. Messages that were published together have equal
    headers.
    """
    latest: str | None = None
    context = NO_CONTEXT

    def context_of(headers: str) -> Context:
        nonlocal latest, context
        if headers != latest:
            latest, context = headers, extract(headers)
        return context

    return context_of


def link_in(context: Context, attributes: Mapping[str, str] | None = None) -> Link | None:
    """A link to the span of a context, or None if the context has no span."""
    span = trace.get_current_span(context).get_span_context()
    return Link(span, attributes) if span.is_valid else None


def links_of(stream: str, messages: Iterable[tuple[int, str | None]], *, named: bool = True) -> list[Link]:
    """A link for each span that published some of the messages, at most `MAX_LINKS`.

    Args:
        messages: pairs of (seq, headers).
        named: whether a link has the id of the first message of its span.
    """
    links: dict[tuple[int, int], Link] = {}
    last: str | None = None
    for seq, headers in islice(messages, MAX_HEADERS_READ):
        if headers is None or headers == last:  # messages that were published together have equal headers
            continue
        last = headers
        link = link_in(extract(headers), {MESSAGE_ID: message_id(stream, seq)} if named else None)
        if link is not None:
            links.setdefault((link.context.trace_id, link.context.span_id), link)
            if len(links) == MAX_LINKS:
                break
    return list(links.values())


def _encode(headers: Mapping[str, object]) -> str:
    return msgspec.json.encode(headers).decode()
