"""Old and new workers, servers and publishers on one database, killed and restarted while the schema rises."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import asyncpg
import httpx
import pytest

from headrace import store
from tests.torture.fleet import ROOT
from tests.torture.http_servers import ServerProcess
from tests.torture.ledger import counts, open_ledger
from tests.upgrade.release import oldest
from tests.upgrade.synthetic import three_more

PATIENCE = 300.0
"""Seconds for the remaining messages, and for the end of a process."""

BATCH = 20


class Worker:
    """One `headrace run`, which is stopped and started again with another revision."""

    def __init__(self, number: int, dsn: str, logs: Path) -> None:
        self.dsn = dsn
        self.log = logs / f"worker-{number}.log"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, package: Path) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace.cli.main", "run", "tests.torture.rolling_app:app", "--database", self.dsn,
                stdout=log, stderr=log, cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{package}:{ROOT}"},
            )  # fmt: skip

    async def stop(self, number: signal.Signals) -> None:
        """End it. Raises `AssertionError` if it had ended on its own, or ends otherwise than asked."""
        self.check()
        assert self.process is not None
        self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), PATIENCE)
        # SIGTERM may come before the process handles it.
        allowed = {-signal.SIGKILL} if number == signal.SIGKILL else {0, -signal.SIGTERM}
        assert code in allowed, self.log.read_text(errors="replace")[-4000:]

    def check(self) -> None:
        assert self.process is not None
        assert self.process.returncode is None, self.log.read_text(errors="replace")[-4000:]


class Publisher:
    """Publishes messages with ids, in order per key, each until it is confirmed."""

    def __init__(self, number: int, share: int) -> None:
        self.number = number
        self.share = share
        self.sent = 0

    async def run(self) -> None:
        while self.sent < self.share:
            ids = range(self.sent, min(self.sent + BATCH, self.share))
            key = f"publisher{self.number}.key{(self.sent // BATCH) % 8}"
            await self.insist([(key, f"{self.number}-{one}") for one in ids])
            self.sent += len(ids)
            await asyncio.sleep(0)

    async def insist(self, batch: list[tuple[str, str]]) -> None:
        raise NotImplementedError


class SQLPublisher(Publisher):
    """Plain SQL over one connection with prepared statements, as a driver keeps them."""

    def __init__(self, number: int, share: int, connection: asyncpg.Connection) -> None:
        super().__init__(number, share)
        self.connection = connection

    async def insist(self, batch: list[tuple[str, str]]) -> None:
        async with self.connection.transaction():
            for key, name in batch:
                await self.connection.fetchval("select headrace.publish('orders', $1, $2)", key, f'{{"id": "{name}"}}')


class HTTPPublisher(Publisher):
    """Requests to a server that is killed and restarted meanwhile."""

    def __init__(self, number: int, share: int, server: ServerProcess, client: httpx.AsyncClient) -> None:
        super().__init__(number, share)
        self.server = server
        self.client = client

    async def insist(self, batch: list[tuple[str, str]]) -> None:
        messages = [{"key": key, "data": {"id": name}, "message_id": name} for key, name in batch]
        while True:
            with suppress(httpx.HTTPError):
                answer = await self.client.post(
                    f"{self.server.url}/v1/streams/orders/messages", json={"messages": messages}
                )
                if answer.status_code < 300:
                    return
                assert answer.status_code >= 500, answer.text
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
@pytest.mark.long
async def test_old_and_new_processes_run_side_by_side(empty_dsn: str, tmp_path: Path) -> None:
    await roll(empty_dsn, tmp_path, messages=2000, restarts=8)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_old_and_new_processes_run_side_by_side_for_long(empty_dsn: str, tmp_path: Path) -> None:
    await roll(empty_dsn, tmp_path, messages=200_000, restarts=50)


async def roll(dsn: str, directory: Path, *, messages: int, restarts: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    release = oldest(directory / "release")
    packages = [release, *three_more(ROOT / "framework", directory)]
    workers = [Worker(number, dsn, directory) for number in range(3)]
    server = ServerProcess(dsn, directory / "server.log", "--no-capture")
    server.package = release
    await workers[0].start(release)
    connection = await asyncpg.connect(dsn)
    ready = "select exists (select from headrace_internal.workers)"
    async with asyncio.timeout(PATIENCE):
        while not await connection.fetchval(
            "select to_regclass('headrace_internal.features') is not null"
        ) or not await connection.fetchval(ready):
            workers[0].check()
            await asyncio.sleep(0.02)
    await open_ledger(connection)
    # Ids are remembered for as long as the run takes: an HTTP publisher repeats what was not answered.
    await connection.execute("update headrace_internal.streams set dedupe_window = '1 hour'")
    await asyncio.gather(*(worker.start(release) for worker in workers[1:]))
    await asyncio.to_thread(server.start)
    share = messages // 2
    async with httpx.AsyncClient(timeout=10) as client:
        publishers = [SQLPublisher(0, share, connection), HTTPPublisher(1, messages - share, server, client)]
        publishing = asyncio.gather(*(one.run() for one in publishers))
        try:
            for count in range(restarts):
                goal = messages * count // restarts
                while sum(one.sent for one in publishers) < goal and not publishing.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                # The newest revision rises with the run. Any process may be of any revision up to it.
                newest = count * len(packages) // restarts
                package = packages[newest] if count % 2 else chance.choice(packages[: newest + 1])
                number = chance.choice((signal.SIGKILL, signal.SIGTERM))
                if count % 4 == 3:
                    assert server._process is not None
                    assert server._process.poll() is None, server.last_words()
                    await asyncio.to_thread(server.kill if number == signal.SIGKILL else server.stop)
                    server.package = package
                    await asyncio.to_thread(server.start)
                else:
                    worker = chance.choice(workers)
                    await worker.stop(number)
                    await worker.start(package)
            await asyncio.wait_for(publishing, PATIENCE)
            async with asyncio.timeout(PATIENCE):
                while await connection.fetchval("select count(*) from applied") < messages:
                    for worker in workers:
                        worker.check()
                    await asyncio.sleep(0.05)
            for worker in workers:
                await worker.stop(signal.SIGTERM)
            assert await asyncio.to_thread(server.stop) == 0
        finally:
            publishing.cancel()
            for worker in workers:
                if worker.process is not None and worker.process.returncode is None:
                    worker.process.kill()
                    await worker.process.wait()
            await asyncio.to_thread(server.stop)
    found = await counts(connection)
    state = await connection.fetchval("select max(version) from headrace_internal.migrations")
    print(f"seed {seed}: {messages} messages, {restarts} restarts, revision {state}, {found}")
    assert (found["applied"], found["duplicates"], found["violations"]) == (messages, 0, 0)
    twice = "select what from applied group by what having count(*) > 1"
    assert await connection.fetch(twice) == []
    out_of_order = """select * from (
        select split_part(what, '-', 2)::int as place, lag(split_part(what, '-', 2)::int) over (partition by key order by seq) as before
        from applied join headrace_streams.orders using (seq)) as s where place < before"""
    assert await connection.fetch(out_of_order) == []
    assert state == store.newest_revision() + 3
    await connection.close()
