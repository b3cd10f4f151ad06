"""Text from messages, clients and other systems, made safe for logs and terminals.

A key or an error may contain escape sequences, which control a terminal, and line breaks, which would make one line
of a log look like two. Every value that is printed goes through these functions.
"""

from __future__ import annotations

import re

INDENT = "  "
"""In front of the further lines of a log record, so that none looks like another record."""

_NOT_ASCII = re.compile(r"[^\n -~]")


def printable(text: str) -> str:
    """Escape every character that controls a terminal, is invisible or breaks a line."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def printable_lines(text: str, indent: str = "") -> str:
    """As `printable`, but text of several lines keeps them. The lines after the first are indented."""
    if text.isprintable():
        return text
    return f"\n{indent}".join(printable(line.expandtabs(4)) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """Escape the same characters in JSON text, as JSON does. It stays the same JSON."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _NOT_ASCII.sub(_json_escaped, text)


def _json_escaped(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
