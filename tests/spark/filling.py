"""Helpers that fill streams with messages and read archives, for the tests of pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from headrace import store
from headrace.model.specs import StreamSpec


async def fill(database: store.Database, stream: str, count: int, *, keys: int = 7, days: int = 1) -> None:
    """Publish so many messages. With several days they are cut into as many equal parts, one for each day."""
    await store.create_stream(database, stream)
    await publish(database, stream, 0, count, keys=keys)
    if days > 1:
        await database.fetch(
            f"update headrace_streams.{stream} set created_at = timestamptz '2030-01-01 12:00:00+00' + (seq - 1) * $1::int / $2::int * interval '1 day'",
            days, count,
        )  # fmt: skip


async def in_segments(database: store.Database, **policy: Any) -> None:
    """Create the stream `orders` in segments of ten messages, which retention may drop one by one."""
    stream = await store.create_stream(database, StreamSpec(name="orders", **policy))
    for row in await database.fetch("delete from headrace_internal.segments returning relation"):
        await database.fetch(f"drop table {row[0]}")
    await database.fetch(
        "select headrace_internal.add_segment($1, i * 10 + 1, (i + 1) * 10 + 1) from generate_series(0, 19) as i",
        stream,
    )
    await database.fetch("select headrace_internal.add_segments_ahead($1, 201, 10)", stream)


async def publish(database: store.Database, stream: str, first: int, last: int, *, keys: int = 7) -> None:
    """Publish messages with the numbers above `first`, up to `last`. A number's key depends on its remainder."""
    await database.fetch(
        """select headrace.publish_many($1, array_agg('orders.' || g % $4), array_agg(json_build_object('n', g)))
           from generate_series($2::int + 1, $3::int) as g""",
        stream, first, last, keys,
    )  # fmt: skip


async def read(database: store.Database, stream: str) -> list[tuple[int, str, str]]:
    """Return a stream's messages: seq, key and data."""
    rows = await database.fetch(f"select seq, key, data::text as data from headrace_streams.{stream} order by seq")
    return [(row["seq"], row["key"], row["data"]) for row in rows]


def archived(path: Path) -> pa.Table:
    """Return the archived rows by seq, as any reader sees them that lists the directory."""
    found: Any = pyarrow.dataset.dataset(path, partitioning="hive")
    return found.to_table().sort_by("seq")
