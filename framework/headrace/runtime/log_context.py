"""A log filter that adds the current message and trace to the log records of a handler."""

from __future__ import annotations

import logging
import sys
from typing import Any

from headrace.runtime.messages.message import Message
from headrace.runtime.slot import current_slot

FIELDS = ("stream", "consumer", "key", "seq", "attempt", "messages", "trace_id", "span_id")
"""The fields that it adds to a record, if they exist.

`messages` is the number of messages of a batch. A batch has no seq, and has a key only if its
messages share it.
"""


class LogContext(logging.Filter):
    """Adds the current delivery to each record that is made in a handler or in code that runs below
    it, also in threads.

    It drops no record. Fields that the record has already, from `extra=`, stay.

    Add it to a handler of `logging`, not to a logger: `handler.addFilter(LogContext())`. It costs
    nothing for code that logs nothing. The records of a task that outlives its handler get the
    fields of what the same actor works on then.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields. Returns True."""
        for name, value in in_work().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def in_work() -> dict[str, Any]:
    """Return the fields for the code that runs here. Empty if it runs neither below a handler nor
    inside a span."""
    return {**_delivery(), **_span()}


def identity(message: Message) -> dict[str, Any]:
    """Return the fields that identify a message in a log record."""
    return {"stream": message.stream, "consumer": message.consumer, "key": message.key, "seq": message.seq}


def _delivery() -> dict[str, Any]:
    slot = current_slot.get()
    delivery = None if slot is None else slot.delivery
    if delivery is None:
        return {}
    messages = delivery.messages
    if len(messages) == 1:
        return {**identity(messages[0]), "attempt": messages[0].attempt}
    fields: dict[str, Any] = {"stream": delivery.stream, "consumer": delivery.consumer}
    keys = {message.key for message in messages}
    return {**fields, **({"key": keys.pop()} if len(keys) == 1 else {}), "messages": len(messages)}


def _span() -> dict[str, str]:
    trace = sys.modules.get("opentelemetry.trace")  # loaded if tracing is in use, otherwise not needed
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
