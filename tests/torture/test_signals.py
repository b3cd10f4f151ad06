"""A worker that gets a signal to stop finishes the handlers that run, and releases the other messages."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from headrace import store
from headrace.embedded import EmbeddedPostgres
from tests.support.readers import publish
from tests.torture.fleet import Line, Worker, spawn

KEYS = [f"key{number}" for number in range(40)]
ACTORS = 4
PATIENCE = 30.0  # seconds that anything here may take before it has failed


@asynccontextmanager
async def running(dsn: str, log: Path) -> AsyncIterator[tuple[Worker, asyncio.Task[int]]]:
    """A worker as `headrace run` starts it, and its main task, which returns its exit code."""
    worker = await spawn(
        "slow", log, seed=0, dsn=dsn, stream="orders", actors=ACTORS, ack_wait="20s", until_signal=True
    )
    life = asyncio.create_task(worker.read())
    try:
        async with asyncio.timeout(PATIENCE):
            yield worker, life
    finally:
        worker.send(signal.SIGKILL)
        await life


def begun(count: int) -> Callable[[list[Line]], bool]:
    return lambda lines: len(seqs("began", lines)) >= count


def logged(text: str) -> Callable[[list[Line]], bool]:
    return lambda lines: any(text in line.get("logged", "") for line in lines)


def seqs(what: str, lines: list[Line]) -> list[int]:
    return [line[what] for line in lines if what in line]


async def left(dsn: str) -> tuple[int, list[int], set[int]]:
    """Return the number of leases, the parked messages, and their counted attempts."""
    connection = await asyncpg.connect(dsn)
    leases = await connection.fetchval("select count(*) from headrace_internal.leases")
    parked = await connection.fetch("select seq, attempts from headrace_internal.parked order by seq")
    await connection.close()
    return leases, [row["seq"] for row in parked], {row["attempts"] for row in parked}


@pytest.mark.asyncio
async def test_sigterm_finishes_what_was_begun_and_gives_back_the_rest(
    database: store.Database, tmp_path: Path
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *KEYS, seconds=0.5)
    async with running(database.dsn, tmp_path / "log") as (worker, life):
        await worker.said(begun(ACTORS + 1))
        worker.send(signal.SIGTERM)
        assert await life == 0
    done = seqs("ended", worker.lines)
    assert sorted(seqs("began", worker.lines)) == sorted(done)
    leases, parked, attempts = await left(database.dsn)
    info = await store.consumer(database, "orders", "work")
    assert (leases, info.in_flight) == (0, 0)
    assert attempts <= {0}, "what never started counts as an attempt"
    assert len(done) + len(parked) + info.lag == len(KEYS)


@pytest.mark.asyncio
async def test_a_second_sigint_stops_handlers_at_once_and_gives_back_all(
    database: store.Database, tmp_path: Path
) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *KEYS, seconds=600)
    async with running(database.dsn, tmp_path / "log") as (worker, life):
        await worker.said(begun(ACTORS))
        worker.send(signal.SIGINT)
        await worker.said(logged("draining: signal=SIGINT"))
        assert not life.done()
        worker.send(signal.SIGINT)
        await life
    leases, parked, attempts = await left(database.dsn)
    info = await store.consumer(database, "orders", "work")
    assert (leases, info.in_flight) == (0, 0)
    assert attempts == {0}, "a handler that was stopped counts as an attempt"
    assert set(seqs("began", worker.lines)) <= set(parked)
    assert len(parked) + info.lag == len(KEYS)


@pytest.mark.asyncio
async def test_sigterm_ends_a_worker_that_lost_its_database(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres", settings={"fsync": "off"})
    with server.acquire():
        try:
            database = store.Database(server.url())
            await database.open()
            await store.migrate(database)
            await store.create_stream(database, "orders")
            await publish(database, *KEYS, seconds=0.2)
            async with running(server.url(), tmp_path / "log") as (worker, life):
                await worker.said(begun(1))
                await asyncio.to_thread(server.stop, "immediate")
                await worker.said(logged("database unavailable"))
                worker.send(signal.SIGTERM)
                assert await life == 0
            assert sorted(seqs("began", worker.lines)) == sorted(seqs("ended", worker.lines))
        finally:
            server.destroy()
