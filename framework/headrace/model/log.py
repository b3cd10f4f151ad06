"""Log records as events with fields.

    log = Log("headrace")
    log.warning("leases lost", consumer="ship", leases=3, hint="raise ack_wait")

The message of such a record is the event followed by its fields, so that any formatter shows them. The
fields are attributes of the record as well, as if they had been given in `extra=`, and `event` is the
event alone. The formatters of `headrace run` use these.
"""

from __future__ import annotations

import logging
from typing import Any

from headrace.model.text.printing import INDENT, printable, printable_lines


class Event:
    """The message of a log record. It becomes text only when a handler formats the record."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        """The event, followed by its fields: `leases lost: consumer=ship leases=3`. A field `traceback` comes on
        separate lines, which are indented."""
        fields = {name: value for name, value in self.fields.items() if name != "traceback"}
        line = f"{self.name}: {fields_as_text(fields)}" if fields else self.name
        if "traceback" not in self.fields:
            return line
        return f"{line}\n{INDENT}{printable_lines(str(self.fields['traceback']), INDENT)}"


class Log:
    """A logger of events.

    Args:
        name: the name of the logger of `logging`.
    """

    def __init__(self, name: str) -> None:
        self.logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event that helps to debug Headrace."""
        self._log(logging.DEBUG, event, None, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event of normal operation."""
        self._log(logging.INFO, event, None, fields)

    def warning(self, event: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log an event that may need attention."""
        self._log(logging.WARNING, event, exc_info, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log an event that needs attention. `exc_info` adds the traceback of an exception."""
        self._log(logging.ERROR, event, exc_info, fields)

    def _log(self, level: int, event: str, exc_info: BaseException | None, fields: dict[str, Any]) -> None:
        if self.logger.isEnabledFor(level):
            known = {name: value for name, value in fields.items() if value is not None}
            extra = {"event": event, **known}
            self.logger.log(level, Event(event, known), exc_info=exc_info, extra=extra, stacklevel=3)


def fields_as_text(fields: dict[str, Any]) -> str:
    """Return fields as `name=value`, separated by spaces."""
    return " ".join(f"{printable(name)}={field_text(value)}" for name, value in fields.items())


def field_text(value: Any) -> str:
    """Return the value of a field as text on one line. Texts with spaces or quotes are quoted, so that none looks
    like several fields."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if " " not in text and '"' not in text:
        return printable(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'
