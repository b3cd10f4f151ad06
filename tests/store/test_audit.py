"""The audit log in the database: an entry lives and dies with its change, and the log is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.model.watching.audit import MAX_DETAILS, Actor, Change

pytestmark = pytest.mark.asyncio

ANN = Actor("ann", "http")
START = datetime(2026, 3, 1, tzinfo=UTC)


async def record(database: store.Executor, name: str, at: datetime = START, **details: object) -> None:
    change = Change(action="consumer.seek", kind="consumer", name=name, stream="orders", details=details)
    await store.record_change(database, ANN, change, now=at)


async def names(database: store.Database, **selection: object) -> list[str]:
    return [entry.object.name for entry in await store.changes(database, **selection)]  # type: ignore[arg-type]


async def test_an_entry_is_rolled_back_with_its_change(database: store.Database) -> None:
    async def change_and_fail() -> None:
        async with database.transaction() as connection:
            await record(connection, "ship")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await change_and_fail()
    assert await store.changes(database) == []


async def test_an_entry_has_what_was_done_and_the_role_of_the_session(database: store.Database) -> None:
    await record(database, "ship", to=7)
    (entry,) = await store.changes(database)
    assert (entry.actor, entry.via, entry.action, entry.stream) == ("ann", "http", "consumer.seek", "orders")
    assert (entry.object.kind, entry.object.name, entry.details, entry.at) == ("consumer", "ship", {"to": 7}, START)
    assert entry.role == await database.fetchval("select session_user")


async def test_entries_of_the_same_moment_are_told_apart_and_listed_newest_first(database: store.Database) -> None:
    for number in range(5):
        await record(database, str(number))
    assert await names(database) == ["4", "3", "2", "1", "0"]


async def test_pages_go_on_where_the_last_one_ended(database: store.Database) -> None:
    for number in range(5):
        await record(database, str(number), START + timedelta(seconds=number))
    first = await store.changes(database, limit=2)
    second = await store.changes(database, limit=2, after=first[-1].place)
    assert [entry.object.name for entry in [*first, *second]] == ["4", "3", "2", "1"]
    assert first.more
    back = await store.changes(database, limit=2, before=second[-1].place)
    assert [entry.object.name for entry in back] == ["3", "2"]


async def test_a_range_of_times_ends_before_its_end(database: store.Database) -> None:
    for number in range(5):
        await record(database, str(number), START + timedelta(seconds=number))
    assert await names(database, since=START + timedelta(seconds=1), until=START + timedelta(seconds=3)) == ["2", "1"]


async def test_a_caller_sees_only_the_changes_of_its_streams(database: store.Database) -> None:
    await record(database, "ship")
    await store.record_change(database, ANN, Change(action="token.create", kind="token", name="ci"), now=START)
    assert await names(database, streams=["orders"]) == ["ship"]
    assert await names(database, streams=["others"]) == []
    assert await names(database, action="token") == ["ci"]


async def test_the_log_keeps_a_time_and_a_number_of_entries(database: store.Database) -> None:
    for number in range(10):
        await record(database, str(number), START + timedelta(days=number))
    now = START + timedelta(days=10)
    assert await store.delete_old_changes(database, keep=8 * 86_400, entries=100, now=now) == 2
    assert await store.delete_old_changes(database, keep=80 * 86_400, entries=3, now=now) == 5
    assert await names(database) == ["9", "8", "7"]
    assert await store.delete_old_changes(database, keep=80 * 86_400, entries=3, now=now) == 0


async def test_details_are_bounded(database: store.Database) -> None:
    await record(database, "ship", where="x" * 100_000, messages=3)
    (entry,) = await store.changes(database)
    assert entry.details == {"where": "left out, since it is too large", "messages": 3}
    assert (
        len(Change(action="a.b", kind="a", name="c", details={str(n): "y" * 999 for n in range(999)}).encoded())
        <= MAX_DETAILS
    )


async def test_a_skipped_change_leaves_no_entry(database: store.Database) -> None:
    await store.record_change(database, ANN, Change(action="a.b", kind="a", name="c", skipped=True))
    assert await store.changes(database) == []
