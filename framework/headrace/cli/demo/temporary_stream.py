"""A stream for one run of the demo. It is dropped at the end, so that nothing accumulates."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from headrace import App, HeadraceError, UnknownStream
from headrace.cli.demo.books import Books


def unique_name() -> str:
    """Return a stream name that no other run uses."""
    return f"demo-{secrets.token_hex(4)}"


@asynccontextmanager
async def drop_after(app: App, name: str, books: Books | None = None) -> AsyncIterator[None]:
    """Drop the stream at the end of the block, and the books, also after an error."""
    try:
        yield
    finally:
        with anyio.move_on_after(10, shield=True):
            # If the database is unreachable, the demo reports that error, and the block's own is never replaced.
            with suppress(HeadraceError):
                with suppress(UnknownStream):  # it was not created yet
                    await app.admin.delete_stream(name, force=True)
                if books is not None:
                    await books.drop(app.database)
