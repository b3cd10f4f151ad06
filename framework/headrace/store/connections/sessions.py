"""What the statements of user code leave in a session, which others use afterwards."""

from __future__ import annotations

import functools
import re

RESTORE = "reset session authorization; reset all; close all; unlisten *; discard temp; select pg_catalog.pg_advisory_unlock_all()"
"""SQL that undoes it. It keeps prepared statements, since the driver does, too."""

_LONG = 10_000
"""Number of characters of a statement from which on it is not remembered."""

_BEGINNING = r"(?:\A|;)(?:\s|--[^\n]*|/\*.*?\*/)*"
_CHANGES = re.compile(
    rf"""{_BEGINNING}(?:
            set\b(?!\s+(?:local|constraints|transaction)\b)     # SET LOCAL ends with the transaction
            | (?:reset|discard|load|listen|prepare|deallocate|do|call)\b)
        | \bset_config\s*\((?![^;]*,\s*(?:is_local\s*=>\s*)?true\s*\))
        | \bpg_(?:try_)?advisory_lock
        | \btemp(?:orary)?\s+(?:table|view|sequence|recursive|unlogged)\b(?!.*\bon\s+commit\s+drop\b)
        | \binto\s+(?:local\s+|global\s+)?temp(?:orary)?\b
        | \bwith\s+hold\b""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def drops_statements(statement: str) -> bool:
    """Whether it may drop the prepared statements of the driver, which would go on to use them."""
    return "deallocate" in (text := statement.lower()) or "discard" in text


def changes_session(statement: str) -> bool:
    """Whether a statement, or one of several in a text, may change the session beyond its transaction.

    A function of the user that does so is not noticed, unless it is called by CALL or DO.
    """
    return _changes(statement) if len(statement) < _LONG else _changes.__wrapped__(statement)


@functools.lru_cache(maxsize=1000)
def _changes(statement: str) -> bool:
    return _CHANGES.search(statement) is not None
