"""The shared parts of the drivers: `fetchrow` and `fetchval` over `fetch`, placeholders, and the detection of
libraries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headrace.model.errors import ConfigurationError

_NUMBERED = re.compile(r"\$(\d+)")


class BaseExecutor:
    """Base class of an `Executor`. A subclass implements `fetch`, with placeholders in Postgres's form ($1)."""

    async def fetch(self, query: str, /, *args: Any) -> list[Any]:
        raise NotImplementedError

    async def fetchrow(self, query: str, /, *args: Any) -> Any:
        rows = await self.fetch(query, *args)
        return rows[0] if rows else None

    async def fetchval(self, query: str, /, *args: Any) -> Any:
        row = await self.fetchrow(query, *args)
        return None if row is None else row[0]


def named(query: str, args: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return the statement with placeholders such as `%(p1)s` (the DB-API's pyformat), and its parameters."""
    text = _NUMBERED.sub(r"%(p\1)s", query.replace("%", "%%"))
    return text, {f"p{number}": value for number, value in enumerate(args, 1)}


def libraries(connection: Any) -> set[str]:
    """Return the top-level packages of the object's class and its base classes."""
    return {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}


def unsupported(connection: Any) -> ConfigurationError:
    """Return the error for a connection that no driver supports."""
    return ConfigurationError(
        f"A {type(connection).__module__}.{type(connection).__name__} is not supported for publishing or acking. Pass a Transaction, a"
        " connection of asyncpg or psycopg (AsyncConnection), or an AsyncSession or AsyncConnection of SQLAlchemy. For a synchronous"
        " connection, such as Django's, use headrace.drivers.sync."
    )
