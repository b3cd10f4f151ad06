"""A transaction whose statements may take only so long, for conditions that users have written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from headrace.model.errors import FilterTooSlow, UnknownConsumer
from headrace.store.connections.statements import SHORT_TRANSACTION
from headrace.store.database.database import Database


@asynccontextmanager
async def within(database: Database, limit: float) -> AsyncIterator[Any]:
    """A connection inside a transaction in which no statement may take longer than `limit` seconds.

    Raises:
        FilterTooSlow: a statement took longer. The transaction is rolled back.
    """
    try:
        async with database.transaction(
            f"{SHORT_TRANSACTION}; set local statement_timeout = {limit * 1000:.0f}"
        ) as connection:
            try:
                yield connection
            except asyncpg.QueryCanceledError as error:
                raise FilterTooSlow(
                    f"Evaluating the condition on messages took longer than {limit:g} s. Simplify it, especially its regular expressions."
                ) from error
    except UnknownConsumer:
        await database.refuse_while_recovering()
        raise
