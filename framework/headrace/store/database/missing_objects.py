"""Server errors about missing objects that may exist a moment later: functions during an upgrade, a segment, a
server in recovery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from headrace.model.errors import StoreUnavailable

T = TypeVar("T")

# The errors of a call that looks up functions and types while another process upgrades them: no such
# relation (by its OID), type or function. The call has done nothing, and succeeds when it is repeated.
_REPLACED = frozenset(("XX000", "42704", "42883", "42P01"))

# The errors for a stream, a consumer or a schema that doesn't exist. A server that is restored to an
# earlier time accepts readers while it still replays the log that follows its backup.
_MISSING = frozenset(("HR001", "HR002", "3F000", *_REPLACED))


class ObjectReplaced(StoreUnavailable):
    """A transaction failed because a function, type or segment that it used was replaced or dropped meanwhile.
    Nothing of it is done. It succeeds when it is repeated.
    """


def object_replaced(error: BaseException) -> bool:
    """Whether the server reports that something a statement depends on is missing, as it does while functions
    are replaced.
    """
    if isinstance(error, asyncpg.InvalidCachedStatementError):  # the driver can't recover from it inside a transaction
        return True
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _REPLACED


def object_missing(error: asyncpg.PostgresError) -> bool:
    """Whether the server reports that a stream, a consumer or a part of the schema doesn't exist."""
    return error.sqlstate in _MISSING


async def with_repeat(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is a transaction of its own, and repeat it once if it raises `ObjectReplaced`."""
    try:
        return await call()
    except ObjectReplaced:
        return await call()
