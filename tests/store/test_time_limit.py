"""Transactions whose statements may take only so long."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.errors import FilterTooSlow
from headrace.store.database.time_limit import within

pytestmark = pytest.mark.asyncio


async def test_a_time_limit_holds_in_its_transaction_and_takes_no_round_trip(database: store.Database) -> None:
    before = database.statistics()["round_trips"]
    async with within(database, 7.0) as connection:
        assert await connection.fetchval("show statement_timeout") == "7s"
    assert database.statistics()["round_trips"] == before + 3, "BEGIN, the statement and COMMIT"
    assert await database.fetchval("show statement_timeout") != "7s"


async def test_a_statement_that_takes_longer_is_ended(database: store.Database) -> None:
    with pytest.raises(FilterTooSlow, match=r"longer than 0\.05 s"):
        async with within(database, 0.05) as connection:
            await connection.fetch("select pg_sleep(60)")
