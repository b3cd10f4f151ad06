"""Unique keys: a message is not published while the last one with the same unique key is pending."""

from __future__ import annotations

import pytest

from headrace import store
from tests.conftest import Declare

pytestmark = pytest.mark.asyncio


async def test_smoke(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    first = await store.publish(database, "orders", "a", "1", unique_key="x")
    assert await store.publish(database, "orders", "a", "2", unique_key="x") == first
    batch = await reader.lease()
    assert batch.data == ["1"]
    assert await store.publish(database, "orders", "a", "2", unique_key="x") == first
    assert await store.publish(database, "orders", "a", "2", unique_key="x", unique_while="waiting") == 2
    await reader.ack_all(batch)
    assert await store.publish(database, "orders", "a", "2", unique_key="x") == 2
    await reader.drain()
    assert await store.publish(database, "orders", "a", "2", unique_key="x") == 3
    assert (
        await store.publish_many(database, "orders", ["a", "b", "c"], ["1", "2", "3"], unique_keys=["x", "y", "y"]) == 1
    )
