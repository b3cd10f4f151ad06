"""Captures: one process at a time holds the capture lease and appends. The position commits
together with the appended changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import InUse, LeaseLost, UnknownSource
from headrace.sources.postgres.pgoutput import positions

pytestmark = pytest.mark.asyncio

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest_asyncio.fixture
async def number(database: store.Database) -> int:
    """The number of a source that captures tables."""
    await store.create_stream(database, "orders")
    assert await store.create_source(database, "shop", "postgres", "orders", {"tables": ["public.orders"]})
    (todo,) = await store.captures_to_do(database)
    return todo.number


async def take(database: store.Database, number: int, now: datetime = NOW) -> int | None:
    return await store.take_capture(database, number, uuid4(), 6.0, now=now)


async def stored(database: store.Database) -> list[str]:
    """The keys of the messages in the stream."""
    return [row["key"] for row in await database.fetch("select key from headrace_streams.orders order by seq")]


async def test_one_process_at_a_time_captures_a_source(database: store.Database, number: int) -> None:
    assert await take(database, number) == 1
    assert await take(database, number, NOW + timedelta(seconds=5.9)) is None
    assert await store.renew_capture(database, number, 1, 6.0, now=NOW + timedelta(seconds=5))
    assert await take(database, number, NOW + timedelta(seconds=10.9)) is None
    assert await take(database, number, NOW + timedelta(seconds=11)) == 2
    assert not await store.renew_capture(database, number, 1, 6.0, now=NOW)


async def test_a_released_capture_lease_is_free_at_once(database: store.Database, number: int) -> None:
    assert await take(database, number) == 1
    await store.release_capture(database, number, 1)
    assert await take(database, number) == 2
    await store.release_capture(database, number, 1)  # the epoch of a capture lease that has ended
    assert await take(database, number) is None


async def test_a_process_that_lost_the_capture_lease_appends_nothing(database: store.Database, number: int) -> None:
    assert await take(database, number) == 1
    await store.begin_capture(database, number, 1, "0/10", "sys", 1)
    assert await take(database, number, NOW + timedelta(minutes=1)) == 2
    late = store.CaptureBatch(keys=["a"], data=["1"], position="0/20", captured=1)
    with pytest.raises(LeaseLost):
        await store.append_captured(database, number, 1, "orders", late)
    position = await store.capture_position(database, number)
    assert position is not None
    assert positions.parse(position.position) == 0x10
    assert await stored(database) == []


async def test_a_takeover_waits_for_the_append_under_way(database: store.Database, number: int) -> None:
    assert await take(database, number) == 1
    what = store.CaptureBatch(keys=["a"], data=["1"], position="0/20", captured=1)
    async with database.transaction() as connection:
        await store.append_captured(connection, number, 1, "orders", what)
        assert await take(database, number, NOW + timedelta(minutes=1)) is None
        assert await store.renew_capture(database, number, 1, 6.0, now=NOW), "a renewal does not wait for it"
    assert await take(database, number, NOW + timedelta(minutes=1)) == 2


async def test_the_position_is_that_of_the_last_append_and_old_positions_are_deleted(
    database: store.Database, number: int
) -> None:
    assert await store.capture_position(database, number) is None
    assert await take(database, number) == 1
    await store.begin_capture(database, number, 1, "0/10", "sys", 3)
    for n in range(1, 4):
        what = store.CaptureBatch(keys=["a"], data=[str(n)], position=f"0/{n}0", captured=n)
        await store.append_captured(database, number, 1, "orders", what)
    assert await store.renew_capture(database, number, 1, 6.0, now=NOW)
    assert await database.fetchval("select count(*) from headrace_internal.capture_positions") == 1
    found = await store.capture_position(database, number)
    assert found is not None
    assert positions.parse(found.position) == 0x30
    assert found == store.CapturePosition(position=found.position, captured=3, system_id="sys", timeline=3)


async def test_a_paused_source_is_not_captured(database: store.Database, number: int) -> None:
    info = await store.source(database, "shop")
    assert await take(database, number) == 1
    await store.pause_capture(database, info.id, paused=True)
    assert not await store.renew_capture(database, number, 1, 6.0, now=NOW)
    assert await take(database, number, NOW + timedelta(hours=1)) is None
    paused = (await store.source(database, "shop")).capture
    assert paused is not None
    assert paused.state == "paused"
    await store.pause_capture(database, info.id, paused=False)
    assert await take(database, number) == 2
    with pytest.raises(UnknownSource):
        await store.pause_capture(database, str(uuid4()), paused=True)


async def test_a_stream_that_is_captured_into_is_not_deleted_even_by_force(
    database: store.Database, number: int
) -> None:
    with pytest.raises(InUse, match="Remove what delivers to it first"):
        await store.delete_stream(database, "orders", force=True)


async def test_failed_changes_are_kept_retried_and_dropped(database: store.Database, number: int) -> None:
    info = await store.source(database, "shop")
    assert await take(database, number) == 1
    failed = [store.CaptureFailure(key=key, data='{"record": 1}', error="no such luck") for key in ("a", None)]
    await store.append_captured(
        database, number, 1, "orders", store.CaptureBatch(position="0/20", captured=2, failures=failed)
    )
    found = await store.capture_failures(database, info.id)
    assert [(one.key, one.data, one.error, one.retry) for one in found] == [
        ("a", {"record": 1}, "no such luck", False),
        (None, {"record": 1}, "no such luck", False),
    ]
    assert await store.failures_to_retry(database, number) == []
    assert await store.retry_capture_failures(database, info.id, [found[0].id]) == 1
    (again,) = await store.failures_to_retry(database, number)
    assert (again.id, again.data) == (found[0].id, '{"record": 1}')
    await store.append_captured(
        database, number, 1, "orders", store.CaptureBatch(keys=["a"], data=[again.data], retried=[found[0].id])
    )
    assert await store.drop_capture_failures(database, info.id) == 1
    assert await store.capture_failures(database, info.id) == []
    assert await stored(database) == ["a"]


async def test_a_message_with_the_separator_of_messages_is_not_taken_for_two(
    database: store.Database, number: int
) -> None:
    assert await take(database, number) == 1
    what = store.CaptureBatch(keys=["a", "b"], data=["1", "2\x013"], position="0/20", captured=2)
    with pytest.raises(Exception, match="JSON"):
        await store.append_captured(database, number, 1, "orders", what)
    assert await stored(database) == []


async def test_an_append_is_all_or_nothing(database: store.Database, number: int) -> None:
    assert await take(database, number) == 1
    what = store.CaptureBatch(
        keys=["a", "b"], data=['"' + "x" * 5_000_000 + '"', "not json"], position="0/20", captured=2
    )
    with pytest.raises(Exception, match="JSON"):
        await store.append_captured(database, number, 1, "orders", what)
    assert await store.capture_position(database, number) is None
    assert await stored(database) == []


async def test_an_unattended_source_shows_when_its_last_capture_lease_ended(
    database: store.Database, number: int
) -> None:
    assert await take(database, number) == 1
    found = await database.fetchval("select headrace_internal.capture_info($1, $2)", number, NOW + timedelta(hours=1))
    told = json.loads(found)
    assert told["state"] == "unattended"
    assert datetime.fromisoformat(told["since"]) == NOW + timedelta(seconds=6)
