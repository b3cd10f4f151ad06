"""Headrace's database is reset to an earlier time, while the capturing process and the captured server continue."""

from __future__ import annotations

import pytest

from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio


async def test_captured_changes_that_were_rewound_are_reported_and_not_skipped(shop: Shop) -> None:
    """The process would continue after the missing changes without this check.

    None of its calls fails meanwhile, and its epoch is unchanged.
    """
    await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1)")
        await shop.until(1)
        before = await shop.sql.fetchval("select max(position) from headrace_internal.capture_positions")
        await shop.sql.execute("insert into orders values (2)")
        await shop.until(2)

        async def the_slot_has_moved_on() -> bool:
            return bool(
                await shop.sql.fetchval(
                    "select confirmed_flush_lsn > $1 from pg_replication_slots where database = current_database()",
                    before,
                )
            )

        await eventually(the_slot_has_moved_on)
        async with shop.sql.transaction():
            await shop.sql.execute("lock table headrace_internal.capture_positions in share row exclusive mode")
            await shop.sql.execute("delete from headrace_internal.capture_positions where position > $1", before)
            await shop.sql.execute(
                """insert into headrace_internal.capture_positions (source_id, epoch, position, captured)
                   select source_id, epoch, $1, 1 from headrace_internal.captures""",
                before,
            )
            await shop.sql.execute("delete from headrace_streams.shop where data -> 'record' ->> 'id' = '2'")
        await shop.sql.execute("insert into orders values (3)")
        source = await shop.until_state("stopped")
        assert source.capture is not None
        assert source.capture.reason is not None
        assert "The changes in between are missing" in source.capture.reason
        assert [one["record"]["id"] for one in await shop.stream()] == [1]
