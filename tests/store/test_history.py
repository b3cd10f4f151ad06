"""A real data set: the file changes of a public repository, compacted to the newest per file, and
replayed by seeks."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from headrace import store
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.conftest import Declare
from tests.support.readers import Clock, Reader

pytestmark = pytest.mark.asyncio

HISTORY = Path(__file__).parents[1] / "data" / "git-history"


@pytest.fixture(scope="module")
def history() -> list[dict[str, Any]]:
    with gzip.open(HISTORY / "river.ndjson.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def tree_that_must_result() -> dict[str, str]:
    tree: dict[str, str] = json.loads(gzip.decompress((HISTORY / "river-tree.json.gz").read_bytes()))
    return tree


def tree_of(events: list[dict[str, Any]]) -> dict[str, str]:
    return {event["path"]: event["new"] for event in events if event["new"] is not None}


async def publish(database: store.Database, stream: str, events: list[dict[str, Any]]) -> None:
    for start in range(0, len(events), 100):
        chunk = events[start : start + 100]
        await store.publish_many(
            database, stream, [event["key"] for event in chunk], [json.dumps(event["data"]) for event in chunk]
        )


async def test_compacted_it_ends_with_exactly_the_newest_event_of_each_file(
    database: store.Database, clock: Clock, history: list[dict[str, Any]]
) -> None:
    """Four workers read while it is published. Some of their messages fail."""
    await store.create_stream(database, StreamSpec(name="tree", one_message_per_key=True, dedupe=True))
    spec = ConsumerSpec(stream="tree", name="follow", max_deliver=-1)
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
    seen: dict[str, dict[str, Any]] = {}
    chance = random.Random(7)
    published = asyncio.Event()

    async def worker(name: str) -> None:
        while True:
            all_is_there = published.is_set()
            batch = await reader.lease(name, 20)
            if batch.lease_id is None:
                if all_is_there and not (await reader.info()).num_ack_pending and not batch.more:
                    return
                continue
            failed = take(batch)
            if failed:
                await reader.nack(batch, *failed)
            rest = [seq for seq in batch.seqs if seq not in failed]
            if rest:
                assert await reader.ack(batch, *rest) == []

    def take(batch: Batch) -> list[int]:
        failed = []
        for key, seq, data in zip(batch.keys, batch.seqs, batch.data, strict=True):
            if chance.random() < 0.1:
                failed.append(seq)
                continue
            event = {**json.loads(data), "seq": seq}
            assert seen.get(key, event)["seq"] <= seq, f"{key} went back"
            seen[key] = event
        return failed

    async def publisher() -> None:
        await publish(database, "tree", history)
        published.set()

    await asyncio.gather(publisher(), *(worker(name) for name in ("ann", "bob", "cid", "dan")))

    newest = {event["key"]: event["data"] for event in history}
    rows = await database.fetch("select key, data from headrace_streams.tree")
    assert {row["key"]: json.loads(row["data"]) for row in rows} == newest
    assert tree_of([json.loads(row["data"]) for row in rows]) == tree_that_must_result()
    assert {key: {**event, "seq": 0} for key, event in seen.items()} == {
        key: {**event, "seq": 0} for key, event in newest.items()
    }


async def test_replayed_twice_by_seeks_each_run_is_in_order(
    database: store.Database, declare: Declare, history: list[dict[str, Any]]
) -> None:
    reader = await declare(max_ack_pending=10_000)
    await publish(database, "orders", history)
    for _ in range(3):
        files: dict[str, str | None] = {}
        while (batch := await reader.lease(limit=500)).lease_id is not None:
            for data in map(json.loads, batch.data):
                assert files.get(data["path"]) == data["old"], f"{data['path']} is out of order, lost or doubled"
                files[data["path"]] = data["new"]
            await reader.ack_all(batch)
        assert {path: blob for path, blob in files.items() if blob is not None} == tree_that_must_result()
        await reader.seek(0)
