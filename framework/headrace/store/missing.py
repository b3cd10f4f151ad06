"""What the server says is missing, and may be there a moment later: functions during an upgrade, a segment, a server in recovery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from headrace.model.errors import StoreUnavailable

T = TypeVar("T")

# What the server says when another process has just upgraded our functions and their types, and a call was looking them up:
# no such relation (by its OID), type or function. The call has done nothing, and finds the new ones when it is made again.
_SWEPT_AWAY = frozenset(("XX000", "42704", "42883", "42P01"))

# What is said of a stream, a consumer or a schema that isn't there. A server that is put back to an earlier time lets readers in while it
# still reads the log of what came after its backup.
_NOT_THERE = frozenset(("HR001", "HR002", "3F000", *_SWEPT_AWAY))


class SweptAway(StoreUnavailable):
    """A transaction failed because a function, a type or a segment that it used was replaced or dropped meanwhile. Nothing of it
    is done, and it finds what there is now when it is made again."""


def swept_away(error: BaseException) -> bool:
    """Whether the server says that something a statement stood on is not there, as it does while functions are replaced."""
    if isinstance(error, asyncpg.InvalidCachedStatementError):  # inside a transaction the driver can't mend it
        return True
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate in _SWEPT_AWAY


def not_there(error: asyncpg.PostgresError) -> bool:
    """Whether the server says that a stream, a consumer or a part of the schema is not there."""
    return error.sqlstate in _NOT_THERE


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is a transaction of its own, and make it once more if it was swept away."""
    try:
        return await call()
    except SweptAway:
        return await call()
