"""Keys that all processes on a database share."""

from __future__ import annotations

from headrace.model.errors import NotGranted, SchemaError
from headrace.store.database.database import Executor


async def secret(executor: Executor, name: str) -> bytes:
    """The key of that name. The schema's migration creates the keys."""
    value: bytes | None = await executor.fetchval("select value from headrace_internal.secrets where name = $1", name)
    if value is None and getattr(executor, "granted", False):
        raise NotGranted(
            f"This database role may not read the key {name!r}, which servers need: it has no `admin` for all streams. Give it"
            " to the role with `headrace grant admin ROLE`."
        )
    if value is None:
        raise SchemaError(f"The key {name!r} is missing in headrace_internal.secrets. Restore the deleted row.")
    return value
