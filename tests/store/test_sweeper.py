"""The sweeper visits every stream that needs it, whatever fails or however many consumers there are."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from tests.support.readers import publish
from tests.support.retained import HOUR, Stream

pytestmark = pytest.mark.asyncio


async def test_message_ids_are_forgotten_after_their_window(stream: Stream) -> None:
    await stream.create(dedupe_window=60)
    for message_id in ("x", "y"):
        await store.publish(stream.database, "orders", "a", "1", options=PublishOptions(message_id=message_id))
    assert (await stream.sweep(50)).ids_forgotten == 0
    assert (await stream.sweep(HOUR)).ids_forgotten == 2
    assert await stream.database.fetchval("select count(*) from headrace_internal.message_ids") == 0


async def test_every_stream_is_swept_though_one_fails(stream: Stream) -> None:
    await stream.create(retain_up_to=HOUR)
    await stream.fill(15)
    await store.create_stream(stream.database, StreamSpec(name="other", retain_up_to=HOUR))
    await publish(stream.database, "a", stream="other")
    reader = await stream.consumer()
    await stream.database.fetch(
        "update headrace_internal.consumers set condition = '1 / 0 = 1' where id = $1", reader.id
    )
    sweeper = Sweeper(stream.database)
    with pytest.raises(Exception, match="division by zero"):
        await sweeper.sweep(stream.now + timedelta(hours=2))
    assert await stream.database.fetchval("select count(*) from headrace_streams.other") == 0
    await sweeper.sweep(stream.now + timedelta(hours=2))  # the failing stream is skipped for a while
    assert len(await stream.seqs()) == 15


async def very_many(stream: Stream, count: int) -> None:
    """Insert this many consumers at the start of the stream. They are inserted directly, because
    only their number matters."""
    await stream.consumer("ship-0")
    await stream.database.fetch(
        """with made as (
               insert into headrace_internal.consumers (stream_id, name, filters, condition, ordered, ack_wait, longest_wait, max_ack_pending, max_deliver, backoff, on_exhausted)
               select c.stream_id, 'ship-' || n, c.filters, c.condition, c.ordered, c.ack_wait, c.longest_wait, c.max_ack_pending, c.max_deliver, c.backoff, c.on_exhausted
               from headrace_internal.consumers as c, generate_series(1, $1::int - 1) as n returning id)
           insert into headrace_internal.cursors (consumer_id, version, position) select id, 1, 0 from made""",
        count,
    )


@pytest.mark.parametrize("by_segments", [True, False])
async def test_very_many_consumers_that_lag_are_moved_on_some_at_a_time_and_all_are_counted(
    stream: Stream, by_segments: bool
) -> None:
    """A lock for each of them at once would exceed the server's lock table, and the whole sweep would fail."""
    await stream.create(retain_up_to=HOUR, count=20 if by_segments else 1, width=10 if by_segments else 1_000)
    await stream.fill(25)
    await very_many(stream, 200)
    async with stream.database.transaction() as connection:
        locked, more = await connection.fetchrow(
            "select * from headrace_internal.lock_lagging_consumers((select s from headrace_internal.streams as s), 21, 64)"
        )
        held = await connection.fetchval(
            "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
        )
    assert (len(locked), more, held) == (64, True, 64)
    swept = await stream.sweep(2 * HOUR)
    assert await stream.seqs() == []
    assert swept.missed == 200 * 25
    gaps = await stream.database.fetch("select distinct messages from headrace_internal.gaps")
    assert [row["messages"] for row in gaps] == [25]


async def test_a_stream_without_publishers_is_swept_rarely(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await stream.create(retain_up_to=HOUR)
    sweeper = Sweeper(stream.database)
    looks: list[str] = []
    maintain = sweeper._maintain

    async def spy(row: Any, *arguments: Any) -> None:
        looks.append(row.name)
        await maintain(row, *arguments)

    monkeypatch.setattr(sweeper, "_maintain", spy)
    for _ in range(5):
        await sweeper.sweep()
    assert len(looks) == 1
    await stream.fill(5)
    await sweeper.sweep()
    assert len(looks) == 2
    await stream.edit(retain_up_to=2 * HOUR)
    await sweeper.sweep()
    assert len(looks) == 3


async def logged(stream: Stream, above: int) -> int:
    """The records that Postgres writes to the WAL when it reads the messages above a seq after a checkpoint: one for each page,
    if it sets a hint bit there."""
    await stream.database.fetch("checkpoint")
    plan = await stream.database.fetchval(
        f"explain (analyze, wal, format json) select count(data) from headrace_streams.orders where seq > {above}"
    )
    return json.loads(plan)[0]["Plan"]["WAL Records"]


async def test_a_backlog_that_is_older_than_a_checkpoint_is_read_without_logging_its_pages(stream: Stream) -> None:
    if await stream.database.fetchval("show data_checksums") == "off":
        pytest.skip("a page without a checksum is not logged for a hint bit")
    await stream.create()
    for (relation,) in await stream.database.fetch("select relation from headrace_internal.segments"):
        await stream.database.fetch(f"alter table {relation} set (autovacuum_enabled = off)")  # it would set them, too
    sweeper = Sweeper(stream.database)
    await sweeper.sweep()
    await stream.fill(1000)
    await sweeper.sweep()
    assert await logged(stream, 0) == 0
    await stream.fill(1000)
    assert await logged(stream, 1000) > 3


async def test_hint_bits_are_set_from_where_a_consumer_has_read(stream: Stream) -> None:
    if await stream.database.fetchval("show data_checksums") == "off":
        pytest.skip("a page without a checksum is not logged for a hint bit")
    await stream.create()
    (stream_id,) = (await stream.database.fetch("select id from headrace_internal.streams"))[0]
    await stream.fill(30)
    reader = await stream.consumer()
    assert len((await reader.lease(limit=20)).seqs) == 20
    assert await store.set_hint_bits(stream.database, stream_id, 0) == 30
    assert await store.set_hint_bits(stream.database, stream_id, 1000) == 30  # the database was set back
