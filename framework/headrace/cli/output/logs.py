"""Logging to standard error: text in a terminal, otherwise JSON, with one object per line.

Both formats show the event and its fields, the message that is being handled, and the fields of `extra=`. If
the application has set up logging, its setup stays.

    09:12:33.120 WARNING headrace: leases lost  orders/ship leases=3 hint="raise ack_wait"
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from headrace.app.settings import LogFormat, LogLevel
from headrace.model.log import field_text, fields_as_text
from headrace.model.text.printing import INDENT, printable, printable_json, printable_lines
from headrace.runtime.log_context import LogContext

LogLevelOption = Annotated[
    LogLevel | None,
    Parameter(
        name="--log-level",
        show_default=False,
        help="The minimum level of log messages on standard error. Default: info.",
    ),
]
LogFormatOption = Annotated[
    LogFormat | None,
    Parameter(
        name="--log-format",
        show_default=False,
        help="The format of log messages. Default: text in a terminal, otherwise JSON.",
    ),
]

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
    "event",
}
"""The attributes that every record has. Any other attribute comes from `extra`. color_message is
uvicorn's, and event is Headrace's. Both repeat the message.
"""

_MESSAGE_FIELDS = ("stream", "consumer", "key", "seq", "attempt", "messages")

_RESET = "\x1b[0m"
_COLORS = {
    logging.DEBUG: "\x1b[2m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


def set_up_logging(level: LogLevel, log_format: LogFormat = "auto", number: int | None = None) -> None:
    """Log records of at least `level`. Does nothing if the application has set up logging.

    Args:
        level: the minimum level.
        log_format: `text`, `json`, or `auto`, which is text if standard error is a terminal.
        number: the number of this process among several.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    terminal = sys.stderr.isatty()
    handler = logging.StreamHandler()
    if log_format == "json" or (log_format == "auto" and not terminal):
        handler.setFormatter(JsonFormatter(number))
    else:
        handler.setFormatter(TextFormatter(number, colors=terminal and _wants_colors()))
    handler.addFilter(LogContext())
    root.addHandler(handler)
    root.setLevel(level.upper())


def _wants_colors() -> bool:
    """Return whether to use colors. Any text in NO_COLOR disables them, see no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line: time (RFC 3339, in UTC), level, logger, message,
    and all other fields.
    """

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, Any] = {"process": os.getpid()} | ({} if number is None else {"member": number})

    def format(self, record: logging.LogRecord) -> str:
        """Format the line, without its line end."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _event_or_message(record),
            **self._process,
        }
        for name, value in _extra_fields(record):
            fields.setdefault(name, value)
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        try:
            return printable_json(msgspec.json.encode(fields, enc_hook=str).decode())
        except (
            TypeError,
            ValueError,
            UnicodeError,
        ):  # a key is not a string, or a lone surrogate: encode as text
            valid = {name: _as_valid_text(value) for name, value in fields.items()}
            return printable_json(msgspec.json.encode(valid).decode())


def _as_valid_text(value: Any) -> Any:
    text = value if isinstance(value, str) else repr(value)
    return text.encode(errors="backslashreplace").decode()


class TextFormatter(logging.Formatter):
    """Formats a record as a line of text, in local time: the event, the message being handled, and all other fields.
    Further lines, such as those of a traceback, are indented, and control characters are escaped.
    """

    def __init__(self, number: int | None = None, *, colors: bool = False) -> None:
        super().__init__()
        self._prefix = "" if number is None else f"[{number}] "
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        """Format the record, with tracebacks."""
        line, *others = super().format(record).split("\n")
        return "\n".join((line, *(INDENT + printable_lines(other) for other in others)))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line without tracebacks. `logging.Formatter` appends these."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._colors and record.levelno in _COLORS:
            level = f"{_COLORS[record.levelno]}{level}{_RESET}"
        fields = " ".join(filter(None, [_describe_message(record), fields_as_text(dict(_other_fields(record)))]))
        first, newline, rest = _event_or_message(record).partition("\n")
        line = f"{clock}.{int(record.msecs):03} {level} {self._prefix}{printable(record.name)}: {printable(first)}"
        if fields:
            line += f"  {_COLORS[logging.DEBUG]}{fields}{_RESET}" if self._colors else f"  {fields}"
        traceback = getattr(record, "traceback", None)
        return f"{line}{newline}{rest}" if traceback is None else f"{line}\n{traceback}"


def _event_or_message(record: logging.LogRecord) -> str:
    """Return the event, or the message of a record without one. The fields are formatted apart from it."""
    event = getattr(record, "event", None)
    return event if isinstance(event, str) else record.getMessage()


def _extra_fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the event, of the message being handled, and of `extra=`."""
    return (
        (name, value) for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES and value is not None
    )


def _describe_message(record: logging.LogRecord) -> str:
    """Describe the message being handled: `orders/ship orders.us.1 #17`, with the attempt if it isn't the
    first, or `orders/ship 100 messages`.
    """
    stream, consumer, key, seq, attempt, messages = (getattr(record, name, None) for name in _MESSAGE_FIELDS)
    if consumer is None:
        return ""
    words = [
        field_text(f"{stream}/{consumer}" if stream else str(consumer)),
        None if key is None else field_text(key),
        None if seq is None else f"#{seq}",
    ]
    if isinstance(attempt, int) and attempt > 1:
        words.append(f"attempt {attempt}")
    if messages is not None:
        words.append(f"{messages} messages")
    return " ".join(str(word) for word in words if word is not None)


def _other_fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    fields = (*_MESSAGE_FIELDS, "traceback") if hasattr(record, "consumer") else ("traceback",)
    return ((name, value) for name, value in _extra_fields(record) if name not in fields)
