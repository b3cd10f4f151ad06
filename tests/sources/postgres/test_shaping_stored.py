"""The stream accepts everything that is shaped, and stored failures can be read and tried again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import store
from headrace.sources.postgres.pgoutput.messages import Insert
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from tests.sources.postgres.tables_for_tests import INT8, JSON, TEXT, Shaped, spec

pytestmark = pytest.mark.asyncio

COLUMNS = (("id", INT8), ("name", TEXT), ("data", JSON))
ODD_JSON = [
    b'"\\u0000"', b'{"a\\u0000": 1}', b'"\\\\u0000"', b'"\\\\\\u0000"', b'"\\ud800"', b'"\\ud83d\\udc18"', b'"\\udc18\\ud83d"',
    b"1e400", b"-0.0", b"12345678901234567890123456789", b'{"a": 1, "a": 2}', b"[" * 3000 + b"]" * 3000, b" \t\n1 ",
    '"\u2028\x7f"'.encode(), b'"\\u00e4\\/"', b"9" * 5000,
]  # fmt: skip
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200) | st.sampled_from(
    ["\\u0000", "\\", '"', "a.b", "x" * 2000, "\x01\x1f\x7f", "\\\\u0000"]
)


async def append(database: store.Database, shaped_changes: ShapedChanges) -> list[str]:
    """Append the chunk as the capturer does. Returns the data of the failures."""
    await store.create_stream(database, "orders")
    await store.create_source(database, "shop", "postgres", "orders", spec().settings())
    (todo,) = await store.captures_to_do(database)
    epoch = await store.take_capture(database, todo.number, uuid4(), 60.0)
    assert epoch is not None
    await store.append_captured(database, todo.number, epoch, "orders", shaped_changes)
    failures = await store.capture_failures(database, todo.id, limit=1000)
    await store.retry_capture_failures(database, todo.id)
    kept = [one.data for one in await store.failures_to_retry(database, todo.number, 1000)]
    assert len(failures) == len(kept) == len(shaped_changes.failures)
    assert [failure.key for failure in failures] == [failure.key for failure in shaped_changes.failures]
    await store.release_capture(database, todo.number, epoch)
    return kept


def broken(message: Any) -> Any:
    raise ValueError("\0\ud800 " + "x" * 5000)


@pytest.mark.parametrize("transform", [None, broken, lambda message: message])
async def test_odd_json_is_stored_or_is_a_failure(database: store.Database, transform: Any) -> None:
    shaped = Shaped(COLUMNS, transform=transform)
    for number, data in enumerate(ODD_JSON):
        shaped.take(Insert(1, [b"%d" % number, b"name", data]))
    kept = await append(database, shaped.shaped_changes)
    assert await database.fetchval("select count(*) from headrace_streams.orders") == len(ODD_JSON) - len(kept)
    if transform is broken:
        assert len(kept) == len(ODD_JSON)
    into = ShapedChanges()
    again = [Shaper(spec()).retry(data, into) for data in kept]
    assert again.count(None) == len(into.keys)
    assert not any('"record":null' in data for data in into.data)
    await database.fetch("delete from headrace_internal.capture_failures")
    await append(database, ShapedChanges(keys=into.keys, data=into.data))


async def test_random_rows_under_random_keys_are_stored(database: store.Database) -> None:
    @settings(max_examples=100)
    @given(name=TEXTS, data=st.sampled_from(ODD_JSON))
    def shape(name: str, data: bytes) -> None:
        for shaped in both:
            shaped.take(Insert(1, [b"1", name.encode(), data]))

    both = [
        Shaped(COLUMNS, key=("name",), mode="rows"),
        Shaped(COLUMNS, key_template="{record.name}-{record.data}.{table}"),
    ]
    shape()
    whole = ShapedChanges()
    for shaped in both:
        whole.keys += shaped.keys
        whole.data += shaped.shaped_changes.data
        whole.failures += shaped.shaped_changes.failures
    kept = await append(database, whole)
    assert await database.fetchval("select count(*) from headrace_streams.orders") == len(whole.keys)
    assert len(whole.keys) > len(kept)
