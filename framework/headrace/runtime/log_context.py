"""What is in work, in the log: a filter that adds the message, and the trace, to records from below a handler."""

from __future__ import annotations

import logging
import sys
from typing import Any

from headrace.runtime.bench import at_work

FIELDS = ("stream", "consumer", "key", "seq", "attempt", "messages", "trace_id", "span_id")
"""What it adds to a record, as far as there is such a thing. `messages`: how many there are, of a batch; then there is no seq, and a
key only if they share it."""


class LogContext(logging.Filter):
    """Lets every record pass, and adds what is in work where the record was made: in a handler, and in whatever runs below it, in
    threads, too. Fields that the record has already, by `extra=`, stay.

    Put it on a handler of `logging`, not on a logger: `handler.addFilter(LogContext())`. Nothing is done for code that logs nothing.
    A task that goes on after its handler has returned is told with what that actor works on then.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Adds the fields. Returns True."""
        for name, value in in_work().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def in_work() -> dict[str, Any]:
    """The fields for whatever runs here; empty when that is not below a handler, nor inside a span."""
    return {**_delivery(), **_span()}


def _delivery() -> dict[str, Any]:
    bench = at_work.get()
    delivery = None if bench is None else bench.delivery
    if delivery is None:
        return {}
    fields: dict[str, Any] = {"stream": delivery.stream, "consumer": delivery.consumer}
    messages = delivery.messages
    if len(messages) == 1:
        return {**fields, "key": messages[0].key, "seq": messages[0].seq, "attempt": messages[0].attempt}
    keys = {message.key for message in messages}
    return {**fields, **({"key": keys.pop()} if len(keys) == 1 else {}), "messages": len(messages)}


def _span() -> dict[str, str]:
    trace = sys.modules.get("opentelemetry.trace")  # loaded by whoever traces; not for the log alone
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
