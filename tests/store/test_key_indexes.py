"""Indexes of keys: what they find, how they are made and dropped, and what a search does without one."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from headrace import store
from headrace.model.specs import StreamSpec
from headrace.store.messages.search import Search

pytestmark = pytest.mark.asyncio

PATTERN = "payroll.adp.*.employee.7"


async def _publish(database: store.Database, count: int, stream: str = "orders", start: int = 0) -> None:
    keys = [f"payroll.adp.c{number % 50}.employee.{number // 50}" for number in range(start, start + count)]
    await store.publish_many(database, stream, keys, [json.dumps(number) for number in range(start, start + count)])


async def _indexes(database: store.Database) -> int:
    return int(
        await database.fetchval(
            "select count(*) from pg_indexes where schemaname = 'headrace_streams' and indexdef like '%(key, seq)%'"
        )
    )


async def _segments(database: store.Database) -> int:
    return int(await database.fetchval("select count(*) from headrace_internal.segments"))


async def _set(database: store.Database, value: bool) -> None:
    await store.edit_stream(database, StreamSpec(name="orders", index_keys=value))


@pytest.fixture(params=["append", "compacted"])
def spec(request: pytest.FixtureRequest) -> StreamSpec:
    compacted = request.param == "compacted"
    return StreamSpec(name="orders", one_message_per_key=compacted, index_keys=not compacted)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ([PATTERN], 50),
        (["payroll.adp.c3.employee.7"], 1),
        (["payroll.adp.c3.>"], 20),
        (["payroll.adp.c3.>", "payroll.adp.c3.employee.*", "payroll.adp.c4.employee.1"], 21),
        (["payroll.adp.c3"], 0),
        (["payroll.adp.c.>"], 0),
    ],
)
async def test_an_index_finds_what_a_search_finds(
    database: store.Database, spec: StreamSpec, filters: list[str], count: int
) -> None:
    """With less examined than the stream has, only the index can find all."""
    await store.create_stream(database, spec)
    await _publish(database, 1000)
    for upwards in (True, False):
        step = await store.search(
            database, "orders", Search(filters=filters, upwards=upwards), limit=100, examine=200, seconds=60
        )
        assert (len(step.messages), step.more) == (count, False)
        seqs = [message.seq for message in step.messages]
        assert seqs == sorted(seqs, reverse=not upwards)


async def test_pages_follow_one_another_and_bounds_hold(database: store.Database, spec: StreamSpec) -> None:
    await store.create_stream(database, spec)
    await _publish(database, 1000)
    every = [m.seq for m in await store.messages(database, "orders", store.SeqRange(filters=[PATTERN]), limit=100)]
    assert len(every) == 50
    found: list[int] = []
    chosen = store.SeqRange(filters=[PATTERN], start_seq=every[2], end_seq=every[46])
    while True:
        page = await store.messages(database, "orders", chosen, limit=7)
        found += [message.seq for message in page]
        if not page.more:
            break
        assert page.reached is not None
        chosen = store.SeqRange(filters=[PATTERN], start_seq=page.reached + 1, end_seq=every[46])
    assert found == every[2:47]
    newest = await store.messages(database, "orders", store.SeqRange(filters=[PATTERN]), limit=3, newest=True)
    assert [message.seq for message in newest] == every[-3:]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_plan_uses_the_index_of_keys(database: store.Database, spec: StreamSpec, analyzed: bool) -> None:
    await store.create_stream(database, spec)
    await _publish(database, 5000)
    relation = await database.fetchval("select relation from headrace_internal.streams")
    if analyzed:
        await database.fetch(f"vacuum analyze {relation}")
    async with database.transaction() as connection:
        await connection.execute("load 'auto_explain'; set local auto_explain.log_min_duration = 0")
        await connection.execute(
            "set local auto_explain.log_nested_statements = on; set local client_min_messages = log"
        )
        plans: list[str] = []
        connection.add_log_listener(lambda _, message: plans.append(str(message)))
        (found,) = await connection.fetch(
            "select cardinality(headrace_internal.seqs_by_key(s, array[$1], 1, 5000, 1000000)) from headrace_internal.streams as s",
            PATTERN,
        )
    assert found[0] == 50
    (plan,) = [plan for plan in plans if "employee" in plan and "Index" in plan and "array_agg" in plan]
    assert "Seq Scan" not in plan
    index = "orders.key" if spec.one_message_per_key else "keys.1."
    assert index in plan
    assert "Index Cond: ((key >= 'payroll.adp.'::text) AND (key < 'payroll.adp/'::text))" in plan


async def test_without_an_index_a_search_ends_and_says_where_to_continue(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await _publish(database, 1000)
    before, steps, found = None, 0, []
    while True:
        wanted = Search(filters=[PATTERN], before=before)
        step = await store.search(database, "orders", wanted, limit=100, examine=200, seconds=60)
        steps, before = steps + 1, step.position
        found += [message.seq for message in step.messages]
        if not step.more:
            break
    assert (steps, len(found)) == (5, 50)


async def test_a_filter_that_matches_too_much_is_searched_in_order(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", index_keys=True))
    await _publish(database, 1000)
    wanted = Search(filters=["payroll.>"])
    step = await store.search(database, "orders", wanted, limit=10, examine=100, seconds=60)
    assert [message.seq for message in step.messages] == list(range(1000, 990, -1))
    assert (await store.search(database, "orders", Search(filters=["*.adp.>"]), limit=10)).more


# --- making and dropping them


async def test_new_segments_have_the_index_of_the_beginning(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", index_keys=True))
    assert await _indexes(database) == await _segments(database) > 0
    assert (await store.stream(database, "orders")).index_keys
    assert not await store.adjust_key_indexes(database)


async def test_indexes_are_made_and_dropped_when_the_setting_changes(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await _publish(database, 1000)
    await _set(database, True)
    assert await store.adjust_key_indexes(database, steps=1)
    assert await _indexes(database) == 1
    step = await store.search(database, "orders", Search(filters=[PATTERN]), limit=100, examine=200, seconds=60)
    assert step.more, "the index is not whole yet"
    assert not await store.adjust_key_indexes(database)
    assert await _indexes(database) == await _segments(database)
    assert (
        await database.fetchval("select pg_sequence_last_value(sequence::regclass) from headrace_internal.streams")
        == 1000
    )
    await _set(database, False)
    assert not await store.adjust_key_indexes(database)
    assert await _indexes(database) == 0
    assert not await database.fetchval("select has_key_indexes from headrace_internal.streams")


async def test_a_segment_that_is_written_is_closed_before_it_is_indexed(database: store.Database) -> None:
    """Publishers never wait for the index of a large segment, and consumers read on."""
    await store.create_stream(database, "orders")
    await _publish(database, 1000)
    width = await database.fetchval("select upper from headrace_internal.segments where lower = 1")
    await _set(database, True)
    assert not await store.adjust_key_indexes(database, small=0)
    assert await _indexes(database) == await _segments(database)
    await _publish(database, 1, start=350)
    last = await database.fetchval("select max(seq) from headrace_streams.orders")
    assert last == width, "the first one of the next segment"
    step = await store.search(database, "orders", Search(filters=[PATTERN]), limit=100, examine=300, seconds=60)
    assert (len(step.messages), step.messages[0].seq, step.more) == (51, last, False)


async def test_a_publisher_that_has_not_committed_delays_the_index_and_is_not_delayed(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await _publish(database, 10)
    async with database.transaction() as connection:
        await store.publish(connection, "orders", "a", "1")
        await _set(database, True)
        assert await store.adjust_key_indexes(database), "one is left: the segment of the open transaction"
        assert await _indexes(database) == await _segments(database) - 1
        with anyio.fail_after(10):
            await store.publish(database, "orders", "b", "2")
            await store.publish(connection, "orders", "c", "3")
    assert not await store.adjust_key_indexes(database)


async def test_an_index_that_is_missing_after_a_restore_is_made_again(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="orders", index_keys=True))
    await database.fetch('drop index headrace_streams."keys.1.1"')
    await _publish(database, 10)
    assert len(await store.messages(database, "orders", store.SeqRange(filters=["payroll.>"]))) == 10
    assert not await store.adjust_key_indexes(database)
    assert await _indexes(database) == await _segments(database)


async def test_a_long_name_has_indexes_too(database: store.Database) -> None:
    name = "a" * 48
    await store.create_stream(database, StreamSpec(name=name, index_keys=True))
    await _publish(database, 10, name)
    found: Any = await store.messages(database, name, store.SeqRange(filters=["payroll.adp.c3.employee.0"]))
    assert [message.data for message in found] == [3]
