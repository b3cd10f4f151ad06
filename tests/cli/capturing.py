"""Sources that capture tables, with reports as a capturing process makes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from headrace import store
from headrace.model.capture import CaptureFacts

LONG = 3600.0


class CaptureBatch:
    """A source that a test captures by itself. The stream is `orders`."""

    def __init__(self, database: store.Database, name: str, number: int, epoch: int, source_id: str) -> None:
        self.database = database
        self.name = name
        self.id = source_id
        self._number, self._epoch = number, epoch
        self._total = 0

    async def report(self, state: str = "running", *args: Any, **facts: Any) -> None:
        """Report the capture: its state, reason and fix, and facts."""
        given = CaptureFacts(committed_at=datetime.now(UTC) - timedelta(seconds=5), **facts) if facts else None
        assert await store.report_capture(self.database, self._number, self._epoch, state, *args, facts=given)

    async def append(self, count: int, **what: Any) -> None:
        """Append this many changes, and anything else that is given."""
        self._total += count
        data = store.CaptureBatch(keys=["k"] * count, data=["1"] * count, position="0/20", captured=self._total, **what)
        await store.append_captured(self.database, self._number, self._epoch, "orders", data)

    async def fail(self, *keys: str) -> None:
        """Record changes that could not be made into messages."""
        failed = [
            store.CaptureFailure(key=key, data='{"record": {"id": 7}}', error=f"ValueError: no {key}") for key in keys
        ]
        await self.append(0, failures=failed)

    async def backfill(self, table: str, total: int, read: int) -> str:
        """Start a backfill that has read this many rows of a total. Returns its id."""
        found = await store.start_backfill(self.database, self.id, table)
        assert found is not None
        todo = await store.next_backfill(self.database, self._number)
        assert todo is not None
        assert await store.begin_backfill(self.database, self._number, self._epoch, todo.number, total)
        chunk = store.ChunkDone(id=todo.number, place=[read], read=read, published=read, done=False)
        await self.append(0, chunks=[chunk])
        return found

    async def info(self) -> Any:
        return (await store.source(self.database, self.id)).capture


async def captured(database: store.Database, name: str = "shop", *tables: str, **settings: Any) -> CaptureBatch:
    """Return a source with a capture lease that does not expire during the test."""
    await store.create_source(
        database, name, "postgres", "orders", {"tables": list(tables or ("public.orders",)), **settings}
    )
    [todo] = [one for one in await store.captures_to_do(database) if one.name == name]
    epoch = await store.take_capture(database, todo.number, uuid4(), LONG)
    assert epoch is not None
    return CaptureBatch(database, name, todo.number, epoch, todo.id)
