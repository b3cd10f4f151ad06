"""The full details of one message: its metadata, headers and data, and why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, STRONG
from headrace.cli.options.times import in_utc
from headrace.cli.output.formats import encoding_of, indented_json
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage
from headrace.model.text.printing import printable

MAX_CHARACTERS = 200_000
"""Maximum number of characters shown of one text."""


_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>true|false|null)'
)
_KEY, _TEXT, _OTHER = "#8abeb7", "#b5bd68", "#de935f"


def message_details(message: StoredMessage | DeadLetter) -> Text:
    """Return the full details of a message or a dead letter."""
    text = Text()
    for name, value in _facts(message):
        text.append(f"{name:<12}", FAINT)
        text.append(f"{printable(value)}\n", STRONG if name == "key" else "")
    if isinstance(message, DeadLetter):
        add_section(text, "error", multiline_text(message.error or "no error was given"), BAD)
        if message.traceback:
            add_section(text, "traceback", multiline_text(message.traceback))
    if isinstance(message, PeekedMessage) and message.error:
        add_section(text, "last error", multiline_text(message.error), BAD)
    if message.headers:
        add_section(text, "headers", json_text(message.headers))
    encoding = encoding_of(message)
    add_section(text, "data", json_text(message.data) if encoding is None else Text(printable(encoding), FAINT))
    return text


def _facts(message: StoredMessage | DeadLetter) -> Iterable[tuple[str, str]]:
    yield "key", message.key
    yield "seq", f"{message.seq:,}"
    yield "published", in_utc(message.created_at)
    if isinstance(message, DeadLetter):
        yield "died", in_utc(message.died_at)
        yield "attempts", str(message.attempts)
        yield "reason", message.reason + (", and it blocks its key" if message.blocks else "")
    if isinstance(message, PeekedMessage):
        yield "state", message.state.replace("_", " ")
        yield "attempts", str(message.attempts)
        if message.owner is not None:
            yield "owner", f"{message.owner}, lease {message.lease_id} with {message.held} messages"
        if message.until is not None:
            yield "lease until" if message.state == "in_flight" else "due", in_utc(message.until)
        if message.failed_at is not None:
            yield "failed", in_utc(message.failed_at) + (f", in {message.failed_by}" if message.failed_by else "")


def add_section(text: Text, name: str, content: Text, style: str = "") -> None:
    """Append a section with a heading."""
    text.append(f"\n── {name} ", FAINT)
    text.append("─" * max(2, 24 - len(name)) + "\n", FAINT)
    content.stylize(style)
    text.append_text(content)
    text.append("\n")


def json_text(data: Any) -> Text:
    """Format JSON, indented and in colors."""
    text = multiline_text(indented_json(data))
    if len(text) <= MAX_CHARACTERS // 4:  # a terminal would be slow with more text in colors
        for token in _TOKEN.finditer(text.plain):
            text.stylize(_KEY if token["colon"] else _TEXT if token["text"] else _OTHER, *token.span())
    return text


def multiline_text(text: str) -> Text:
    """Format several lines. Characters that control a terminal are escaped."""
    left = len(text) - MAX_CHARACTERS
    shown = "\n".join(printable(line.expandtabs(4)) for line in text[:MAX_CHARACTERS].split("\n"))
    return Text(shown if left <= 0 else f"{shown}\n… and {left:,} more characters")
