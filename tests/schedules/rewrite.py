"""Gates between the statements of PL/pgSQL functions.

A statement ends at a semicolon outside of strings, comments, parentheses and declarations, and another statement may
stand there. The gate is `if gate.pass() then end if;`, since `perform` would change FOUND.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

GATE = " if gate.pass() then end if; "

_TOKENS = re.compile(
    r"""--[^\n]*
      | /\* .*? \*/
      | [eE]'(?:[^'\\]|''|\\.)*'
      | '(?:[^']|'')*'
      | "(?:[^"]|"")*"
      | \$(?P<tag>(?:[A-Za-z_]\w*)?)\$ .*? \$(?P=tag)\$
      | \w+
      | [();\[\]]
    """,
    re.VERBOSE | re.DOTALL,
)


class Piece(NamedTuple):
    """A part of a body: a statement, or what stands before the first one, with all blanks and comments before it."""

    text: str
    gate: bool
    """Whether a statement may be inserted before it."""


def pieces(body: str) -> Iterator[Piece]:
    """Cut a body at the semicolons that end its statements, and after each BEGIN. Together the pieces are the body."""
    start = depth = 0
    declaring = False
    begun = gate = False
    for token in _TOKENS.finditer(body):
        text = token.group().lower()
        if text in ("(", "["):
            depth += 1
        elif text in (")", "]"):
            depth -= 1
        elif depth:
            continue
        elif text == "declare":
            declaring = True
        elif text == "begin" and (declaring or not begun):
            yield Piece(body[start : token.end()], gate)
            start, declaring, begun, gate = token.end(), False, True, True
        elif text == ";":
            yield Piece(body[start : token.end()], gate)
            start, gate = token.end(), begun and not declaring
    rest = body[start:]
    yield Piece(rest, gate and bool(code(rest)))


def code(text: str) -> str:
    """Return a text without its comments and outer blanks."""
    return re.sub(r"--[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).strip()


def with_gates(body: str, wanted: Callable[[str], bool]) -> str:
    """Return a body with a gate before each statement whose text is `wanted`.

    None stands before GET DIAGNOSTICS, which asks for the statement before.
    """
    return "".join(
        GATE + piece.text
        if piece.gate and wanted(piece.text) and not code(piece.text).lower().startswith("get ")
        else piece.text
        for piece in pieces(body)
    )


def always(_: str) -> bool:
    return True


class Shared:
    """Whether a statement reads or writes anything that other sessions see.

    Args:
        tables: the names of tables in the schema headrace_internal.
        functions: the bodies of the functions in SQL, by name. They have no gates of their own, so a statement that
            calls one which reads a table counts as reading it. Functions in PL/pgSQL have gates of their own.
    """

    _ALWAYS = (
        r"\b(?:execute|lock|nextval|setval|pg_\w*advisory\w*|pg_sequence_last_value|pg_current_xact_id\w*|pg_current_snapshot"
        r"|pg_snapshot_xmin|pg_locks|pg_stat_activity|pg_notify|pg_xact_status|headrace_streams)\b"
    )

    def __init__(self, tables: set[str], functions: dict[str, str]) -> None:
        self._pattern = self._matching(tables)
        reading: set[str] = set()
        while more := {
            name for name, body in functions.items() if name not in reading and self._pattern.search(code(body))
        }:
            reading |= more
            self._pattern = self._matching(tables | reading)

    def _matching(self, names: set[str]) -> re.Pattern[str]:
        chosen = "|".join(sorted(names))
        return re.compile(rf"{self._ALWAYS}|(?<!::)\bheadrace_internal\.(?:{chosen})\b", re.IGNORECASE)

    def __call__(self, statement: str) -> bool:
        return self._pattern.search(code(statement)) is not None
