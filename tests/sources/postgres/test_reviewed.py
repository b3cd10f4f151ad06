"""What a review of the capture engine found, each with what went wrong."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio


async def test_a_large_transaction_that_was_replicated_from_elsewhere_is_captured(shop: Shop) -> None:
    # A piece of it begins with its origin, the only message of a piece without the xid.
    database = await shop.sql.fetchval("select current_database()")
    await shop.sql.execute(f"alter database {database} set logical_decoding_work_mem = '64kB'")
    origin = f"headrace_{uuid4().hex}"
    await shop.sql.execute("select pg_replication_origin_create($1)", origin)
    try:
        await shop.source()
        async with shop.captured():
            await shop.until_running()
            await shop.sql.execute("select pg_replication_origin_session_setup($1)", origin)
            await shop.sql.execute("insert into orders select g, 'new', g from generate_series(1, 3000) as g")
            await shop.sql.execute("select pg_replication_origin_session_reset()")
            found = await shop.until(3000)
        assert [one["record"]["id"] for one in found] == list(range(1, 3001))
    finally:
        await shop.sql.execute("select pg_replication_origin_drop($1)", origin)
