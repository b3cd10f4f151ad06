"""The replayed stream equals the tables, for random transactions with savepoints, rollbacks and all types."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Literal

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from headrace import store
from tests.sources.postgres.replaying import Replaying
from tests.sources.postgres.typed_rows import ROUNDS, TABLES, Block, Op, Work
from tests.support import captures
from tests.torture.capture_judge import check_places, taken

KEYS = {"things": ["id"], "others": ["k", "m"]}
IDENTITIES = {
    "default": "",
    "full": "alter table things replica identity full; alter table others replica identity full;",
}
Mode = Literal["changes", "rows"]

CASES = [("changes", "default"), ("changes", "full"), ("rows", "default")]


@pytest.mark.parametrize(("mode", "identity"), CASES)
def test_the_stream_replayed_equals_the_tables(dsn: str, mode: Mode, identity: str) -> None:
    run(dsn, mode, identity, examples=6)


@pytest.mark.torture
@pytest.mark.parametrize(("mode", "identity"), [*CASES, ("rows", "full")])
def test_the_stream_replayed_equals_the_tables_many_times(dsn: str, mode: Mode, identity: str) -> None:
    run(dsn, mode, identity, examples=600)


def run(dsn: str, mode: Mode, identity: str, examples: int) -> None:
    """Run random transactions, one example after the other on the same tables, while this process captures them."""
    with asyncio.Runner() as runner:
        world = World(dsn, mode)
        try:
            runner.run(world.open(IDENTITIES[identity]))

            @settings(
                max_examples=examples,
                suppress_health_check=list(HealthCheck),
                database=None,
                phases=[Phase.explicit, Phase.generate],
            )
            @given(ROUNDS)
            def example(rounds: list[tuple[Work, ...]]) -> None:
                runner.run(world.example(rounds))

            example()
            runner.run(world.check_all())
        finally:
            runner.run(world.close())
    gc.collect()  # the world has its own loop, so its garbage must be found here and not in another test


class World:
    """The tables, the connections that write them, the capturing app, and the replica."""

    def __init__(self, dsn: str, mode: Mode) -> None:
        self._dsn = dsn
        self._mode = mode
        self._over = asyncio.Event()
        self._capture: asyncio.Task[None] | None = None
        self._writers: list[Any] = []
        self._failed = False

    async def open(self, identity: str) -> None:
        # Transactions of a few kilobytes are streamed before they end.
        self._writers = [await asyncpg.connect(self._dsn) for _ in range(2)]
        self._observer = self._writers[0]
        await captures.set_in_database(self._observer, "logical_decoding_work_mem", "64kB")
        await self._observer.execute(TABLES + identity)
        self._database = store.Database(self._dsn, max_connections=2)
        await self._database.open()
        tables = ("public.things", "public.others", "public.marks")
        deletes = {"deletes": "tombstone"} if self._mode == "rows" else {}
        await captures.make(self._database, stream="log", tables=tables, mode=self._mode, **deletes)
        self._replaying = Replaying(self._observer, "log", KEYS)
        await self._replaying.begin()
        self._capture = asyncio.create_task(self._run())
        await captures.until_tracked(self._database, "log")
        await captures.until(self._database, "select not exists (select from headrace_internal.backfills where state in ('queued', 'running'))")  # fmt: skip

    async def _run(self) -> None:
        async with captures.capturing(self._dsn, within=3600):
            await self._over.wait()

    async def example(self, rounds: list[tuple[Work, ...]]) -> None:
        await self._writers[0].execute("truncate things, others")
        if self._failed:  # start again, so that a failing example can be shrunk
            await self._settled()
            await self._replaying.forget()
        self._failed = True
        for works in rounds:
            await self._play(works)
        await self._settled()
        if self._mode == "changes":
            await self._replaying.replay()
        else:
            await self._replaying.latest()
        differences = await self._replaying.differences()
        assert not differences, differences
        failures = await self._observer.fetchval("select count(*) from headrace_internal.capture_failures")
        self._failed = failures > 0
        assert failures == 0, await self._observer.fetch(
            "select error, data::text from headrace_internal.capture_failures limit 3"
        )

    async def _settled(self) -> None:
        assert self._capture is not None
        waiting = asyncio.create_task(
            captures.until_all_is_captured(self._database, "log", "insert into marks default values")
        )
        await asyncio.wait({waiting, self._capture}, return_when=asyncio.FIRST_COMPLETED)
        if self._capture.done():
            waiting.cancel()
            await self._capture
        await waiting

    async def check_all(self) -> None:
        if self._mode == "changes":
            assert check_places(await taken(self._observer, "log"), whole=True) > 0

    async def close(self) -> None:
        self._over.set()
        if self._capture is not None:
            await asyncio.gather(self._capture, return_exceptions=True)
        await captures.drop_slots(self._dsn)
        for connection in self._writers:
            await connection.close()
        if hasattr(self, "_database"):
            await self._database.close()

    # --- transactions

    async def _play(self, works: tuple[Work, ...]) -> None:
        """Run one transaction, or several that take turns and end in their order."""
        begun = []
        for connection, work in zip(self._writers, works, strict=False):
            transaction = connection.transaction()
            await transaction.start()
            begun.append((connection, transaction, work))
        for n in range(max(len(work.ops) for work in works)):
            for connection, _, work in begun:
                if n < len(work.ops):
                    await self._do(connection, work.ops[n])
        for _, transaction, work in begun:
            await (transaction.commit() if work.kept else transaction.rollback())

    async def _do(self, connection: Any, what: Op | Block) -> None:
        if isinstance(what, Op):
            await connection.fetch(what.sql, *what.args)
            return
        savepoint = connection.transaction()
        await savepoint.start()
        for inner in what.ops:
            await self._do(connection, inner)
        await (savepoint.commit() if what.kept else savepoint.rollback())
