"""Logging to standard error: lines for people in a terminal, otherwise JSON for programs, with one
object per line.

Both formats include the message in progress, and the fields of `extra=`. If the application has set up
logging, its setup stays.
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
from headrace.model.log import fields_as_text
from headrace.runtime.log_context import LogContext

LogLevelOption = Annotated[
    LogLevel | None,
    Parameter(name="--log-level", show_default=False, help="What to log, to standard error; info by default."),
]
LogFormatOption = Annotated[
    LogFormat | None,
    Parameter(
        name="--log-format",
        show_default=False,
        help="Lines for people, or JSON; by default as standard error is a terminal.",
    ),
]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message", "event"}
"""The attributes that every record has. Any other attribute comes from `extra`. color_message is
uvicorn's, and event is Headrace's. Both repeat the message.
"""

_WHERE = ("stream", "consumer", "key", "seq", "attempt", "messages")

_RESET = "\x1b[0m"
_COLOURS = {
    logging.DEBUG: "\x1b[2m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


def set_up_logging(level: LogLevel, form: LogFormat = "auto", member: int | None = None) -> None:
    """Log records of at least `level`. Does nothing if the application has set up logging.

    Args:
        level: the minimum level.
        form: text, JSON, or auto, which selects one by whether standard error is a terminal.
        member: the number of this process among several.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    terminal = sys.stderr.isatty()
    handler = logging.StreamHandler()
    if form == "json" or (form == "auto" and not terminal):
        handler.setFormatter(JsonFormatter(member))
    else:
        handler.setFormatter(TextFormatter(member, colours=terminal and _wants_colours()))
    handler.addFilter(LogContext())
    root.addHandler(handler)
    root.setLevel(level.upper())


def _wants_colours() -> bool:
    """Whether to use colours. Any text in NO_COLOR disables them, see no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line: time (RFC 3339, in UTC), level, logger, message,
    and all other fields.
    """

    def __init__(self, member: int | None = None) -> None:
        super().__init__()
        self._process: dict[str, Any] = {"process": os.getpid()} | ({} if member is None else {"member": member})

    def format(self, record: logging.LogRecord) -> str:
        """Format the line, without its line end."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        told: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **self._process,
        }
        for name, value in _extra(record):
            told.setdefault(name, value)
        if record.exc_info and record.exc_info[0] is not None:
            told["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = self.formatStack(record.stack_info)
        try:
            return msgspec.json.encode(told, enc_hook=str).decode()
        except (
            TypeError,
            ValueError,
            UnicodeError,
        ):  # a key is not a string, or a lone surrogate: encode as text
            return msgspec.json.encode({name: _safe(value) for name, value in told.items()}).decode()


def _safe(value: Any) -> Any:
    text = value if isinstance(value, str) else repr(value)
    return text.encode(errors="backslashreplace").decode()


class TextFormatter(logging.Formatter):
    """Formats a record as a line for people, in local time. The message in progress follows, then all other fields."""

    def __init__(self, member: int | None = None, *, colours: bool = False) -> None:
        super().__init__()
        self._who = "" if member is None else f"[{member}] "
        self._colours = colours

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line without tracebacks. `logging.Formatter` appends these."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._colours and record.levelno in _COLOURS:
            level = f"{_COLOURS[record.levelno]}{level}{_RESET}"
        behind = " ".join(filter(None, [_where(record), fields_as_text(dict(_rest(record)))]))
        first, newline, more = _message(record).partition("\n")
        line = f"{clock}.{int(record.msecs):03} {level} {self._who}{record.name}: {first}"
        if behind:
            line += f"  {_COLOURS[logging.DEBUG]}{behind}{_RESET}" if self._colours else f"  {behind}"
        traceback = getattr(record, "traceback", None)
        return f"{line}{newline}{more}" if traceback is None else f"{line}\n{traceback}"


def _message(record: logging.LogRecord) -> str:
    """Return the message. The fields of an event are formatted apart from it."""
    event = getattr(record, "event", None)
    return event if isinstance(event, str) else record.getMessage()


def _extra(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """The fields of the message in progress and of `extra=`."""
    return ((name, value) for name, value in vars(record).items() if name not in _STANDARD and value is not None)


def _where(record: logging.LogRecord) -> str:
    """Describe the message in progress: `orders/ship orders.us.1 #17`, with the attempt if it isn't the
    first, or `orders/ship 100 messages`.
    """
    stream, consumer, key, seq, attempt, messages = (getattr(record, name, None) for name in _WHERE)
    if consumer is None:
        return ""
    words = [f"{stream}/{consumer}", key, None if seq is None else f"#{seq}"]
    if isinstance(attempt, int) and attempt > 1:
        words.append(f"attempt {attempt}")
    if messages is not None:
        words.append(f"{messages} messages")
    return " ".join(str(word) for word in words if word is not None)


def _rest(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    shown = (*_WHERE, "traceback") if hasattr(record, "consumer") else ("traceback",)
    return ((name, value) for name, value in _extra(record) if name not in shown)
