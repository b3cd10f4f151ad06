"""The checks of the benchmark `capture` can fail. Streams with one fault each must be found wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from benchmarks.captured import make_tables
from benchmarks.checks import CheckFailed
from benchmarks.harness import MESSAGES, STREAM, Bench, Options, bench
from benchmarks.suite.capture_drain import check

pytestmark = pytest.mark.asyncio

TRANSACTIONS = 5
CAPTURED = """
    select headrace.publish_many($1, array_agg(key order by hid, idx), array_agg(data order by hid, idx)) from (
        select hid, 0 as idx, 'public.accounts.' || aid as key, json_build_object(
            'record', json_build_object('aid', aid, 'abalance', delta),
            'metadata', json_build_object('table_name', 'accounts', 'commit_lsn', 1000 + hid, 'commit_idx', 0)) as data from history
        union all
        select hid, 1, 'public.history.' || hid, json_build_object(
            'record', json_build_object('hid', hid, 'aid', aid, 'delta', delta),
            'metadata', json_build_object('table_name', 'history', 'commit_lsn', 1000 + hid, 'commit_idx', 1)) from history
    ) as messages
"""


@pytest_asyncio.fixture
async def place(server_dsn: str) -> AsyncIterator[Bench]:
    """Five transactions, and a correct stream of them."""
    async with bench(Options(server_dsn)) as place:
        await make_tables(place)
        await place.database.fetch(f"call work(0, {TRANSACTIONS})")
        await place.database.fetch(CAPTURED, STREAM)
        yield place


async def test_a_correct_stream_passes_the_checks(place: Bench) -> None:
    assert f"{2 * TRANSACTIONS} messages are in the stream" in await check(place, TRANSACTIONS)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (f"delete from {MESSAGES} where seq = 4", "messages in the stream"),
        (
            f"update {MESSAGES} set data = (select data from {MESSAGES} where seq = 2) where seq = 4",
            "places in the WAL",
        ),
        (
            f"update {MESSAGES} set data = jsonb_set(data::jsonb, '{{metadata,commit_lsn}}', '9999')::json where seq = 2",
            "places in the WAL",
        ),
        (
            f"update {MESSAGES} set data = jsonb_set(data::jsonb, '{{record,abalance}}', '7')::json where seq = 1",
            "rows that differ",
        ),
        (
            f"update {MESSAGES} set data = jsonb_set(data::jsonb, '{{record,delta}}', '7')::json where seq = 2",
            "rows that differ",
        ),
        ("update accounts set abalance = 7 where aid = 99999", "rows that differ"),
    ],
)
async def test_a_wrong_stream_fails_the_checks(place: Bench, statement: str, reason: str) -> None:
    await place.database.fetch(statement)
    with pytest.raises(CheckFailed, match=reason):
        await check(place, TRANSACTIONS)
