"""The text of statements, and their messages to the server."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from headrace.model.text.sql import without_timeouts

ONE_PACKET = 1000
"""The number of characters of arguments that are sent with prepared statements in one packet, with room for the rest."""


# Strings, quoted names and comments, which stay as they are. Handlers send statements over these connections, too.
_KEPT = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|(\$(?:[^\W\d]\w*)?\$).*?\1|--[^\n]*|/\*.*?\*/|\bheadrace_internal\.""",
    re.DOTALL,
)


def for_grants(query: str) -> str:
    """A statement of the store for a role that uses the schema through its grants. In the schema headrace_granted it
    finds what it may use, under the same names.
    """
    if "headrace_internal." not in query:
        return query
    return _for_grants(query) if len(query) < 10_000 else _for_grants.__wrapped__(query)


@functools.lru_cache(maxsize=500)
def _for_grants(query: str) -> str:
    return _KEPT.sub(lambda found: "headrace_granted." if found[0] == "headrace_internal." else found[0], query)


@functools.lru_cache(maxsize=100)
def ending_when_idle(seconds: float) -> str:
    """SQL that makes the server end the transaction when it was idle for `seconds` seconds."""
    return f"set local idle_in_transaction_session_timeout = {seconds * 1000:.0f}"


SHORT_TRANSACTION = ending_when_idle(2)
"""For a call that is a transaction. A process may freeze inside it, or the connection may die silently behind a pooler,
where the backend is unknown. The call holds locks for which others wait: a consumer's lock, or rows of leases. So the
server ends it soon. The transaction has no reason to idle, and if a call was ended by mistake, the caller makes it again.
"""

LONG_TRANSACTION = ending_when_idle(30)
"""For several calls, each of which may send megabytes. The server considers the transaction idle until the data has
arrived."""


LONG_STATEMENT = without_timeouts("statement_timeout", "transaction_timeout", session=True)
"""For a session of its own whose statement may take longer than the role's timeouts allow."""


def for_session(setting: str) -> str:
    """The SQL that sets for the session what `setting` sets for its transaction."""
    return setting.replace("set local ", "set session ", 1)


def resets(settings: Sequence[str]) -> list[str]:
    """The SQL that undoes such settings, with the names of their parameters."""
    return [f"reset {setting.removeprefix('set local ').partition(' ')[0]}" for setting in settings]


def bound(statement: str, arguments: Sequence[str | None]) -> bytes:
    """Bind and Execute for a prepared statement, without a Sync."""
    return _bound(statement, arguments) if arguments else _bound_alone(statement)


@functools.lru_cache(maxsize=1000)
def _bound_alone(statement: str) -> bytes:
    return _bound(statement, ())


def _bound(statement: str, arguments: Sequence[str | None]) -> bytes:
    values = [b"\xff\xff\xff\xff" if text is None else _with_length(text.encode()) for text in arguments]
    body = b"\0%s\0\0\0%s%s\0\0" % (statement.encode(), len(values).to_bytes(2, "big"), b"".join(values))
    return b"B%s%sE\0\0\0\t\0\0\0\0\0" % ((len(body) + 4).to_bytes(4, "big"), body)


def _with_length(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value
