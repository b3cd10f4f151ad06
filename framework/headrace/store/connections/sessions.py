"""Changes that the statements of user code leave in a session, which others use afterwards."""

from __future__ import annotations

import functools
import re

RESTORE = "reset session authorization; reset all; close all; unlisten *; discard temp; select pg_catalog.pg_advisory_unlock_all()"
"""SQL that undoes it. It keeps prepared statements, since the driver does, too."""

_LONG = 10_000
"""Number of characters of a statement from which on it is not remembered."""

_MANY = 1000
"""Number of statements in a text, or of calls of `set_config`, from which on they are not looked at."""

# All of these take time in proportion to the text, whatever it is.
_BLANK = re.compile(r"(?>\s+|--[^\n]*)*")
_FIRST_WORDS = re.compile(
    r"set\b(?!\s+(?:local|constraints|transaction)\b)|(?:reset|discard|load|listen|prepare|deallocate|do|call)\b"
)
_SETS_FOR_GOOD = re.compile(r"\bset_config\s*\((?![^;]{0,1000}?,\s*(?:is_local\s*=>\s*)?true\s*\))")
_TEMPORARY = re.compile(
    r"\btemp(?:orary)?\s+(?:table|view|sequence|recursive|unlogged)\b|\binto\s+(?:local\s+|global\s+)?temp(?:orary)?\b"
)
_UNTIL_COMMIT = re.compile(r"\bon\s+commit\s+drop\b")
_HELD_CURSOR = re.compile(r"\bwith\s+hold\b")


def drops_statements(statement: str) -> bool:
    """Whether it may drop the prepared statements of the driver, which would still use them."""
    return "deallocate" in (text := statement.lower()) or "discard" in text


def changes_session(statement: str) -> bool:
    """Whether a statement, or one of several in a text, may change the session beyond its transaction.

    A function of the user that does so is not noticed, unless it is called by CALL or DO.
    """
    return _changes(statement) if len(statement) < _LONG else _changes.__wrapped__(statement)


@functools.lru_cache(maxsize=1000)
def _changes(statement: str) -> bool:
    text = statement.lower()
    return (
        _begins_with_a_change(text)
        or ("/*" in text and _begins_with_a_change(_without_comments(text)))
        or ("set_config" in text and (text.count("set_config") > _MANY or _SETS_FOR_GOOD.search(text) is not None))
        or "pg_advisory_lock" in text
        or "pg_try_advisory_lock" in text
        or ("temp" in text and _TEMPORARY.search(text) is not None and _UNTIL_COMMIT.search(text) is None)
        or ("hold" in text and _HELD_CURSOR.search(text) is not None)
    )


def _begins_with_a_change(text: str) -> bool:
    """Whether one of the statements in a text begins with a word that changes the session. A string or a comment with a
    semicolon may look like it, too."""
    if text.count(";") > _MANY:
        return True
    return any(_FIRST_WORDS.match(one, _end_of_blank(one)) is not None for one in text.split(";"))


def _end_of_blank(text: str) -> int:
    blank = _BLANK.match(text)
    return blank.end() if blank else 0


def _without_comments(text: str) -> str:
    kept, end = [], 0
    while (start := text.find("/*", end)) >= 0 and (closed := text.find("*/", start)) >= 0:
        kept.append(text[end:start])
        end = closed + 2
    return " ".join((*kept, text[end:]))
