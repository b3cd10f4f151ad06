"""The watermark of a table: a time below which no row can appear any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from headrace import store
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.runtime.maintenance.sweeper import Sweeper
from headrace.runtime.maintenance.watermark import Watermark
from tests.conftest import Connect
from tests.store.test_bounded_cost import touched

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HERE, ELSEWHERE = "here", "elsewhere"


def watermark() -> Watermark:
    return Watermark(None, "somewhere")  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_everything_is_visible_once_all_holders_have_ended() -> None:
    mark = watermark()
    assert mark.observe(at(0), {"a", "b"}, HERE) is False
    assert mark.observe(at(1), {"a", "c"}, HERE) is True
    assert mark.at is None
    mark.observe(at(2), {"c"}, HERE)
    assert mark.at == at(0 - 2)
    mark.observe(at(3), {"d"}, HERE)  # c was present at 2
    assert mark.at == at(2 - 1)


def test_a_clock_that_is_set_back_by_less_than_what_has_passed_hides_no_row() -> None:
    """It is at 1.2 after 1.9, a row is added, and the next look is at 2.2 as if it were 2.9."""
    mark = watermark()
    for second in (0, 1, 2.2, 3.2):
        mark.observe(at(second), set(), HERE)
        assert mark.at is None or mark.at <= at(1.2)


@pytest.mark.parametrize(("when", "history"), [(-1, HERE), (5, ELSEWHERE)])
def test_a_clock_or_a_database_that_was_set_back_voids_the_watermark(when: int, history: str) -> None:
    mark = watermark()
    mark.observe(at(0), set(), HERE)
    mark.observe(at(1), set(), HERE)
    assert mark.at == at(-1)
    assert mark.observe(at(when), set(), history) is False
    assert mark.at is None


@given(spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_no_holder_from_before_the_watermark_is_left(spans: list[tuple[int, int]]) -> None:
    """A transaction that was open before that time may have added an earlier row."""
    mark = watermark()
    for second in range(60):
        there = {str(who) for who, (first, length) in enumerate(spans) if first <= second <= first + length}
        mark.observe(at(second), there, HERE)
        if mark.at is not None:
            assert not any(at(first) <= mark.at and first + length >= second for first, length in spans)


# --- in the store


@pytest_asyncio.fixture
async def pinned(connect: Connect) -> AsyncIterator[Any]:
    """Hold an old snapshot, so that no dead row can be removed."""
    connection = await connect()
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetchval("select count(*) from headrace_internal.streams")
        yield connection


class Single:
    """One connection in place of a pool, so that the reads over it can be counted."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def publish_for_later(executor: Any, count: int, *, within: float = 0.5) -> None:
    due = [datetime.now(UTC) + timedelta(seconds=within)] * count
    await store.publish_many(
        executor, "orders", ["a"] * count, ["1"] * count, options=[PublishOptions(deliver_at=at) for at in due]
    )


async def delivered(schedule: Scheduler) -> None:
    """Deliver until every scheduled message is published, and twice more, because a floor needs two calls."""
    due_in, rest = 0.0, 2
    while due_in is not None or rest:
        rest -= due_in is None
        _, due_in = await schedule.deliver()


async def published(database: store.Database, stream: str = "orders") -> int:
    """The number of messages in the stream. Those that were due before a slow call began are published immediately."""
    count: int = await database.fetchval(f"select count(*) from headrace_streams.{stream}")
    return count


@pytest.mark.asyncio
async def test_the_dead_rows_of_scheduled_messages_cost_a_delivery_nothing(
    database: store.Database, connect: Connect, pinned: Any
) -> None:
    await store.create_stream(database, "orders")
    connection = await connect()
    schedule = Scheduler(Single(connection))  # type: ignore[arg-type]
    counts = []
    for count in (20, 3_000):
        await publish_for_later(database, count)
        await delivered(schedule)
        counts.append(await touched(connection, schedule.deliver))
    assert await published(database) == 3_020
    assert counts[1] <= counts[0] + 20, counts


@pytest.mark.asyncio
async def test_a_message_scheduled_by_a_transaction_that_commits_late_is_delivered(
    database: store.Database, connect: Connect
) -> None:
    await store.create_stream(database, "orders")
    schedule = Scheduler(database)
    late = await connect()
    async with late.transaction():
        await publish_for_later(late, 1)
        for number in range(1, 6):
            await publish_for_later(database, 10)
            await delivered(schedule)
            assert await published(database) == 10 * number
    await delivered(schedule)
    assert await published(database) == 51


@pytest.mark.asyncio
async def test_messages_that_wait_for_a_full_stream_are_not_forgotten(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await store.create_stream(database, "other")
    schedule = Scheduler(database)
    await publish_for_later(database, 3)
    await database.fetch(
        "update headrace_internal.streams set full_until = now() + interval '1 hour' where name = 'orders'"
    )
    for number in range(1, 6):
        await store.publish(
            database,
            "other",
            "a",
            "1",
            options=PublishOptions(deliver_at=datetime.now(UTC) + timedelta(milliseconds=300)),
        )
        while await published(database, "other") < number:  # until the message is due
            await schedule.deliver()
    await database.fetch("update headrace_internal.streams set full_until = null")
    await delivered(schedule)
    assert await published(database) == 3


@pytest.mark.asyncio
async def test_dead_rows_of_message_ids_cost_a_sweep_nothing(
    database: store.Database, connect: Connect, pinned: Any
) -> None:
    await store.create_stream(database, StreamSpec(name="orders", dedupe_window=0.001))
    connection = await connect()
    sweeper = Sweeper(Single(connection))  # type: ignore[arg-type]
    counts = []
    for count in (20, 3_000):
        for _ in range(3):  # a floor needs two calls after the publishers have ended
            ids = [f"{count}-{number}-{datetime.now(UTC)}" for number in range(count)]
            await store.publish_many(
                database,
                "orders",
                ["a"] * count,
                ["1"] * count,
                options=PublishOptions.of_many(len(["1"] * count), message_ids=ids),
            )
            while (
                await connection.fetchval("select exists (select from headrace_internal.message_ids)")
                or sweeper._ids_left
            ):
                await sweeper.sweep()
        counts.append(await touched(connection, sweeper.sweep))
    assert counts[1] <= counts[0] + 40, counts
