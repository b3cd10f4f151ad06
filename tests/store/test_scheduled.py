"""Scheduled messages are published when they are due."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from headrace import store
from headrace.model.messages.publish_options import PublishOptions
from headrace.runtime.maintenance.scheduler import Scheduler
from tests.support.retained import HOUR, Stream

pytestmark = pytest.mark.asyncio


async def schedule(stream: Stream, seconds: float, *keys: str) -> None:
    due = stream.now + timedelta(hours=1, seconds=seconds)
    await store.publish_many(
        stream.database,
        "orders",
        keys,
        [json.dumps(f"{key} {seconds:g}") for key in keys],
        options=[PublishOptions(deliver_at=at) for at in [due] * len(keys)],
    )


async def published(stream: Stream) -> list[str]:
    rows = await stream.database.fetch("select data #>> '{}' from headrace_streams.orders order by seq")
    return [row[0] for row in rows]


async def test_scheduled_messages_are_published_when_due_in_the_order_of_their_times(stream: Stream) -> None:
    await stream.create()
    await schedule(stream, 30, "a", "b")
    await schedule(stream, 10, "a", "c")
    await schedule(stream, 20, "a")
    await schedule(stream, 10, "a")
    assert (await stream.sweep()).published == 0
    assert (await stream.sweep(HOUR + 20)).published == 4
    assert await published(stream) == ["a 10", "c 10", "a 10", "a 20"]
    janitor = Scheduler(stream.database)
    assert await janitor.deliver(stream.now + timedelta(hours=1, seconds=25)) == (0, 5)
    assert await janitor.deliver(stream.now + timedelta(hours=1, seconds=30)) == (2, None)
    assert await published(stream) == ["a 10", "c 10", "a 10", "a 20", "a 30", "b 30"]


async def test_many_are_published_call_by_call_and_by_several_at_once_each_once(stream: Stream) -> None:
    await stream.create()
    for second in range(5):
        await schedule(stream, second, *(["a"] * 500))
    schedules = [Scheduler(stream.database) for _ in range(4)]
    counts = await asyncio.gather(*(one.deliver(stream.now + timedelta(hours=2)) for one in schedules))
    total = sum(count for count, _ in counts) + (await schedules[0].deliver(stream.now + timedelta(hours=2)))[0]
    assert total == 2500
    assert await published(stream) == [f"a {second}" for second in range(5) for _ in range(500)]


async def test_scheduled_messages_wait_while_the_stream_is_full(stream: Stream) -> None:
    await stream.create(max_storage=1_000_000, retain_at_least=HOUR)
    await schedule(stream, 0, "a")
    await stream.database.fetch("update headrace_internal.streams set full_until = now() + interval '1 hour'")
    janitor = Scheduler(stream.database)
    assert await janitor.deliver(stream.now + timedelta(hours=2)) == (0, 1)
    await stream.database.fetch("update headrace_internal.streams set full_until = null")
    assert await janitor.deliver(stream.now + timedelta(hours=2)) == (1, None)
