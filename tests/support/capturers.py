"""Somebody who captures a source, in a test that says itself how that goes."""

from __future__ import annotations

from uuid import uuid4

from headrace import store


async def begun(database: store.Database, name: str) -> tuple[int, int]:
    """Let a source be captured by somebody who has come up to some place, and keeps it for an hour. Returns its number and the tenure's epoch."""
    number = next(one.number for one in await store.captures_to_do(database) if one.name == name)
    epoch = await store.take_capture(database, number, uuid4(), 3600)
    assert epoch is not None
    await store.begin_capture(database, number, epoch, "0/10", "7", 1)
    return number, epoch
