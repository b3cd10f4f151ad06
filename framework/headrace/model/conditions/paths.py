"""Parse and format fields: a root, and a path of steps into it."""

from __future__ import annotations

import re
from functools import lru_cache

from headrace.model.errors import InvalidFilter
from headrace.model.text.sql import quoted

DOCUMENTS = ("data", "headers")
COLUMNS = ("key", "seq", "created_at")
MAX_STEPS = 32

PLAIN = re.compile(r"[\w$@-]+")
STEP = re.compile(r'\.(?:"((?:[^"]|"")*)"|([\w$@-]+))')


def canonical(field: str) -> str:
    """The field with quotes only where it needs them. Raises `InvalidFilter` with a sentence fragment as its text."""
    return join(split(field))


def root(field: str) -> str:
    return field.partition(".")[0]


def join(path: tuple[str, ...]) -> str:
    """Format a path, its root first."""
    steps = (step if PLAIN.fullmatch(step) else quoted(step) for step in path[1:])
    return ".".join((path[0], *steps))


@lru_cache(maxsize=1024)
def split(field: str) -> tuple[str, ...]:
    """Parse a field into a path, its root first. Raises `InvalidFilter` with a sentence fragment as its text."""
    name = root(field)
    rest = field[len(name) :]
    if name in COLUMNS and rest:
        raise InvalidFilter(f"{name} has no fields below it, write data.{field} if it is in the data")
    if name not in (*DOCUMENTS, *COLUMNS):
        raise InvalidFilter(
            f"the field {field!r:.80} is unknown, write data.{field:.60} for a field of the data, headers.{field:.60} for a"
            " header, or one of key, seq and created_at"
        )
    steps = []
    place = 0
    while place < len(rest):
        step = STEP.match(rest, place)
        if step is None:
            raise InvalidFilter(
                f"the field {field!r:.80} has a bad step at {rest[place:]!r:.20}, part steps by dots and put odd ones in"
                ' double quotes: data."odd key".c'
            )
        steps.append(step[2] if step[1] is None else step[1].replace('""', '"'))
        place = step.end()
    if len(steps) > MAX_STEPS:
        raise InvalidFilter(f"the field {field!r:.80} has more than {MAX_STEPS} steps")
    return (name, *steps)
