"""A capture lease for tests that perform the capture steps themselves."""

from __future__ import annotations

from uuid import uuid4

from headrace import store


async def begun(database: store.Database, name: str) -> tuple[int, int]:
    """Take the capture lease of a source for an hour, with some position already reached. Returns the
    source's number and the epoch of the lease.
    """
    number = next(one.number for one in await store.captures_to_do(database) if one.name == name)
    epoch = await store.take_capture(database, number, uuid4(), 3600)
    assert epoch is not None
    await store.begin_capture(database, number, epoch, "0/10", "7", 1)
    return number, epoch
