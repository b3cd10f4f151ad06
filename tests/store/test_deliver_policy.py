"""Delivery policies: the position at which a new consumer begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.specs import ConsumerSpec
from tests.conftest import Connect, Declare
from tests.support.readers import by_key, publish

pytestmark = pytest.mark.asyncio


async def test_a_new_consumer_begins_with_all_messages(database: store.Database, declare: Declare) -> None:
    await publish(database, "a", "b")
    assert await (await declare()).drain() == [1, 2]


async def test_a_new_consumer_begins_with_new_messages_only(database: store.Database, declare: Declare) -> None:
    await publish(database, "a", "b")
    reader = await declare(deliver_policy="new")
    await publish(database, "a")
    assert await reader.drain() == [3]


async def test_a_message_that_commits_late_is_new(database: store.Database, declare: Declare, connect: Connect) -> None:
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "a")
    await publish(database, "b")
    reader = await declare(deliver_policy="new")
    await transaction.commit()
    assert await reader.drain() == [1]


@pytest.mark.parametrize(("start", "found"), [(1, [1, 2, 3]), (2, [2, 3]), (3, [3])])
async def test_at_a_seq(database: store.Database, declare: Declare, start: int, found: list[int]) -> None:
    await publish(database, "a", "b", "c")
    assert await (await declare(deliver_policy="by_start_seq", start_seq=start)).drain() == found


async def test_at_a_time(database: store.Database, declare: Declare) -> None:
    await publish(database, "a", "b")
    now = await database.fetchval("select clock_timestamp()")
    await publish(database, "c")
    reader = await declare(deliver_policy="by_start_time", start_time=now)
    assert await reader.drain() == [3]


async def test_with_the_last_message_of_each_key_and_then_new_messages(
    database: store.Database, declare: Declare
) -> None:
    await publish(database, *"abacbd")
    reader = await declare(deliver_policy="last_per_key")
    await publish(database, *"ae")
    assert await reader.drain() == [3, 4, 5, 6, 7, 8]


async def test_the_last_of_each_key_that_matches(database: store.Database, declare: Declare) -> None:
    await publish(database, "x.a", "y.a", "x.b", "x.a", "y.b")
    assert await (await declare(deliver_policy="last_per_key", filters=("x.*",))).drain() == [3, 4]


async def test_the_last_message_of_each_key_comes_before_new_messages_however_many_keys_there_are(
    database: store.Database, declare: Declare
) -> None:
    keys = [f"k{n}" for n in range(3_000)]
    await publish(database, *keys, *keys)
    reader = await declare(deliver_policy="last_per_key", max_ack_pending=100_000)
    await publish(database, *reversed(keys))
    seen: dict[str, list[int]] = {}
    while (batch := await reader.lease(limit=700, look=500)).lease_id is not None:
        for key, seqs in by_key(batch).items():
            seen.setdefault(key, []).extend(seqs)
        await reader.ack_all(batch)
    assert all(seqs == sorted(seqs) and len(seqs) == 2 for seqs in seen.values())
    assert len(seen) == 3_000


async def test_a_late_commit_is_new_to_the_last_of_each_key(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "a")
    await publish(database, "a", "b")
    reader = await declare(deliver_policy="last_per_key")
    await transaction.commit()
    assert sorted(await reader.drain()) == [1, 2, 3]


async def test_a_consumer_that_exists_keeps_its_position(database: store.Database, declare: Declare) -> None:
    await publish(database, "a", "b")
    await (await declare()).drain()
    await publish(database, "c")
    assert await (await declare(deliver_policy="by_start_seq", start_seq=1)).drain() == [3]


async def test_the_end_of_a_stream_that_has_not_come_so_far(database: store.Database, declare: Declare) -> None:
    await publish(database, "a")
    reader = await declare(deliver_policy="by_start_time", start_time=datetime.now(UTC) - timedelta(days=9))
    assert await reader.drain() == [1]


@pytest.mark.parametrize(
    "settings",
    [
        {"deliver_policy": "by_start_seq"},
        {"deliver_policy": "by_start_time"},
        {"deliver_policy": "all", "start_seq": 3},
        {"deliver_policy": "new", "start_time": datetime(2026, 1, 1, tzinfo=UTC)},
        {"deliver_policy": "oldest"},
        {"deliver_policy": "by_start_seq", "start_seq": 0},
        {"deliver_policy": "by_start_time", "start_time": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is the point
    ],
)
async def test_contradictions_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises((ConfigurationError, InvalidInput)):
        ConsumerSpec(stream="orders", name="ship", **settings)
