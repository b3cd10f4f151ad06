"""A stream for one run of the demo. It is dropped at the end, so that nothing accumulates."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from headrace import App, HeadraceError


def unique_name() -> str:
    """Return a stream name that no other run uses."""
    return f"demo-{secrets.token_hex(4)}"


@asynccontextmanager
async def drop_after(app: App, name: str) -> AsyncIterator[None]:
    """Drop the stream at the end of the block, also after an error. The app's consumers must have stopped by then."""
    try:
        yield
    finally:
        with anyio.move_on_after(10, shield=True):
            await _drop(app, name)


async def _drop(app: App, name: str) -> None:
    try:
        async with app.database.transaction() as connection:
            relation = await connection.fetchval(
                "delete from headrace_internal.streams where name = $1 returning relation", name
            )
            if relation is not None:
                await connection.execute(f"drop table {relation}")
    except HeadraceError:
        return  # the database is unreachable, and the demo reports another error
