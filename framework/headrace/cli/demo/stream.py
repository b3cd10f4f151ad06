"""A stream of the demo's own, gone when it ends, so that nothing piles up."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from headrace import App, HeadraceError


def fresh_name() -> str:
    """A name that no other run has."""
    return f"demo-{secrets.token_hex(4)}"


@asynccontextmanager
async def dropped_after(app: App, name: str) -> AsyncIterator[None]:
    """Drop the stream at the end of the block, whatever happens in it. The app's consumers must have stopped by then."""
    try:
        yield
    finally:
        with anyio.move_on_after(10, shield=True):
            await _drop(app, name)


async def _drop(app: App, name: str) -> None:
    try:
        async with app.database.transaction() as connection:
            relation = await connection.fetchval(
                "delete from headrace.streams where name = $1 returning relation", name
            )
            if relation is not None:
                await connection.execute(f"drop table {relation}")
    except HeadraceError:
        return  # the database is away; the demo has another error to tell
