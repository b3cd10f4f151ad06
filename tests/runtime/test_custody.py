"""Two processes at work, and a server that crashes, restarts, or is put back to an earlier time.

While a healthy process works on a message, no other process gets a message of its key. Messages of a key are handled in
order, and none is lost.

`make torture ARGS=tests/runtime/test_custody.py` runs each schedule twenty times, and `make test-postgres VERSION=14
ARGS=tests/runtime/test_custody.py` runs it on another version.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from headrace import App, Message, store
from headrace.embedded import EmbeddedPostgres
from headrace.embedded.os_user import os_user_for
from headrace.model.errors import StoreUnavailable, UnknownStream
from tests.runtime.running import Gate, Seen, eventually, running
from tests.support.clusters import cluster

pytestmark = [pytest.mark.asyncio, pytest.mark.process]

KEYS = 20
SETTINGS = {"wal_writer_delay": "10s"}  # so that a crash loses the newest leases

WITHIN = 40.0

REPEATED = [0, *(pytest.param(number, marks=pytest.mark.torture) for number in range(1, 20))]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with cluster(tmp_path / "postgres", **SETTINGS) as postgres:
        yield postgres


class Judge:
    """Records the handlers' runs of two processes, and what must not happen among them.

    Attributes:
        gate: handlers of messages with the number `held` wait here.
    """

    def __init__(self, held: int = 1) -> None:
        self.held = held
        self.gate = Gate()
        self.seen = Seen()
        self.breaches: list[str] = []
        self._at_work: dict[str, list[str]] = defaultdict(list)
        self._begun: dict[str, list[int]] = defaultdict(list)
        self._handled: dict[str, list[int]] = defaultdict(list)

    async def work(self, process: str, message: Message) -> None:
        key = message.key
        if others := self._at_work[key]:
            self.breaches.append(f"{key}: {process} began {message.data} beside {others}")
        self._at_work[key].append(f"{process} at {message.data}")
        self._begun[key].append(message.data)
        try:
            self.seen.note((process, key, message.data))
            if message.data == self.held:
                await self.gate.wait()
            self._handled[key].append(message.data)
        finally:
            self._at_work[key].remove(f"{process} at {message.data}")

    def rewind(self) -> None:
        """From now on messages may begin again, each key in order."""
        self._begun.clear()

    def check(self, *, last: int, once: bool = False) -> None:
        """The keys at work were handled up to this message, each in order, or even once."""
        for key, begun in self._begun.items():
            if sorted(begun) != begun:
                self.breaches.append(f"{key}: {begun} out of order")
        for key, handled in self._handled.items():
            expected = set(range(1, last + 1))
            if not key.startswith("probe") and (
                set(handled) != expected or handled[-1] != last or (once and len(handled) > last)
            ):
                self.breaches.append(f"{key}: {handled}")
        assert self.breaches == []


class Copy:
    """A copy of a server's directory, which can be put back."""

    def __init__(self, server: EmbeddedPostgres, place: Path) -> None:
        self._server = server
        self._data = server.status().cluster_dir
        self._account = os_user_for(self._data)
        self._place = place

    def take(self) -> None:
        """Stop the server, copy it, and start it."""
        self._server.stop("fast")
        shutil.copytree(self._data, self._place, symlinks=True)
        self._server.start()

    def put_back(self) -> None:
        """Stop the server, and start the copy in its place."""
        self._server.stop("fast")
        shutil.rmtree(self._data)
        shutil.copytree(self._place, self._data, symlinks=True)
        for path in (self._data, *self._data.rglob("*")):
            self._account.own(path)
        self._data.chmod(0o700)
        self._server.start()


def processes(url: str, judge: Judge, **settings: Any) -> tuple[App, App]:
    """Two apps, as two processes would run them."""

    def process(name: str) -> App:
        app = App(url, streams=["orders"])

        @app.consumer("orders", name="ship", concurrency=3 * KEYS, **settings)
        async def ship(message: Message) -> None:
            await judge.work(name, message)

        return app

    return process("ann"), process("bob")


@asynccontextmanager
async def both_running(apps: tuple[App, App]) -> AsyncIterator[tuple[App, App]]:
    async with running(apps[0], within=WITHIN), running(apps[1], within=WITHIN):
        yield apps


async def publish(app: App, *numbers: int, keys: int = KEYS // 2, prefix: str) -> None:
    """Publish messages of each key, as soon as the database can be reached."""

    async def published() -> bool:
        with suppress(StoreUnavailable):
            await app.publish_many("orders", [(f"{prefix}{key}", number) for number in numbers for key in range(keys)])
            return True
        return False

    await eventually(published)


async def both_at_work(apps: tuple[App, App], judge: Judge) -> None:
    """Half of the keys for each of them, if each takes what it publishes."""
    for app, prefix in zip(apps, "ab", strict=True):
        await publish(app, 1, prefix=prefix)
    await judge.gate.until(KEYS)


async def others_are_handled(app: App, judge: Judge) -> None:
    """Messages of other keys go through both processes, so what can be leased, is leased."""
    for number in range(4):
        before = len(judge.seen.notes)
        await publish(app, 9, keys=KEYS, prefix=f"probe{number}.")
        await judge.seen.until(before + KEYS)


async def end(apps: tuple[App, App], judge: Judge) -> None:
    judge.gate.open()
    for app in apps:
        await app.idle()


@pytest.mark.parametrize("repeat", REPEATED)
async def test_a_crash_takes_no_key_from_a_process_that_works_on_it(server: EmbeddedPostgres, repeat: int) -> None:
    """The crash loses the leases of the messages at work. Each process could be the first to come back."""
    judge = Judge()
    async with both_running(processes(server.url(), judge)) as apps:
        await both_at_work(apps, judge)
        await anyio.to_thread.run_sync(server.restart, "immediate")
        for prefix in "ab":
            await publish(apps[0], 2, prefix=prefix)
        await others_are_handled(apps[0], judge)
        await end(apps, judge)
    judge.check(last=2)


@pytest.mark.parametrize("repeat", REPEATED)
async def test_a_full_window_of_slow_handlers_keeps_its_keys_over_a_crash(
    server: EmbeddedPostgres, repeat: int
) -> None:
    """Neither process has room to lease anything, so neither would notice the crash by a lease call."""
    judge = Judge()
    async with both_running(processes(server.url(), judge, max_ack_pending=KEYS)) as apps:
        await both_at_work(apps, judge)
        await anyio.to_thread.run_sync(server.restart, "immediate")
        for prefix in "ab":
            await publish(apps[0], 2, prefix=prefix)
        await both_checked_in(apps)
        await end(apps, judge)
    judge.check(last=2)


async def both_checked_in(apps: tuple[App, App]) -> None:
    async def checked_in() -> bool:
        with suppress(StoreUnavailable):
            history = (await store.watched(apps[0].database, [])).history
            owners = await apps[0].database.fetch("select history from headrace_internal.owners")
            return history is not None and [row["history"] for row in owners] == [history] * 2
        return False

    await eventually(checked_in)


@pytest.mark.parametrize("repeat", REPEATED)
async def test_an_orderly_restart_voids_no_lease(server: EmbeddedPostgres, repeat: int) -> None:
    judge = Judge()
    async with both_running(processes(server.url(), judge)) as apps:
        await both_at_work(apps, judge)
        await anyio.to_thread.run_sync(server.restart, "fast")
        for prefix in "ab":
            await publish(apps[0], 2, prefix=prefix)
        await others_are_handled(apps[0], judge)
        await end(apps, judge)
        assert [app.statistics()["consumers"]["orders:ship"]["lost"] for app in apps] == [0, 0]
    judge.check(last=2, once=True)


@pytest.mark.parametrize("repeat", REPEATED)
async def test_a_copy_that_is_put_back_brings_no_message_before_an_earlier_one_of_its_key(
    server: EmbeddedPostgres, tmp_path: Path, repeat: int
) -> None:
    """The copy is of a server that was stopped in good order, so it comes back without a recovery."""
    judge = Judge(held=2)
    copy, apps = Copy(server, tmp_path / "copy"), processes(server.url(), judge)
    async with running(apps[0]):
        await apps[0].idle()
    async with apps[0] as app:
        for prefix in "ab":
            await publish(app, 1, 2, 3, prefix=prefix)
    await anyio.to_thread.run_sync(copy.take)
    async with both_running(apps):
        await judge.gate.until(KEYS)
        await both_checked_in(apps)
        judge.rewind()
        await anyio.to_thread.run_sync(copy.put_back)
        await others_are_handled(apps[0], judge)
        await end(apps, judge)
    judge.check(last=3)


@pytest.mark.parametrize("repeat", REPEATED)
async def test_a_copy_that_is_put_back_settles_nothing_that_it_holds_again(
    server: EmbeddedPostgres, tmp_path: Path, repeat: int
) -> None:
    """In the copy the leases hold the first messages of their keys, which have failed since."""
    judge = Judge(held=2)
    copy, apps = Copy(server, tmp_path / "copy"), processes(server.url(), judge)
    async with both_running(apps):
        await both_at_work_on_runs(apps, judge)
        await anyio.to_thread.run_sync(copy.take)
        judge.gate.open()
        for app in apps:
            await app.idle()
        judge.gate, judge.held = Gate(), 4
        for prefix in "ab":
            await publish(apps[0], 4, prefix=prefix)
        await judge.gate.until(KEYS)
        judge.rewind()
        await anyio.to_thread.run_sync(copy.put_back)
        await others_are_handled(apps[0], judge)
        for prefix in "ab":
            await publish(apps[0], 4, prefix=prefix)
        await end(apps, judge)
    judge.check(last=4)


async def both_at_work_on_runs(apps: tuple[App, App], judge: Judge) -> None:
    for app, prefix in zip(apps, "ab", strict=True):
        await publish(app, 1, 2, 3, prefix=prefix)
    await judge.gate.until(KEYS)


@pytest.mark.parametrize("repeat", REPEATED)
async def test_maintenance_that_rewrites_every_table_disturbs_no_worker(dsn: str, repeat: int) -> None:
    judge = Judge()
    async with both_running(processes(dsn, judge)) as apps:
        await both_at_work(apps, judge)
        database = apps[0].database
        tables = await database.fetch(
            """select c.oid::regclass::text as name, quote_ident(k.relname) as key
               from pg_class as c join pg_index as i on i.indrelid = c.oid and i.indisprimary
               join pg_class as k on k.oid = i.indexrelid
               where c.relnamespace::regnamespace::text ~ '^headrace' and c.relkind = 'r'"""
        )
        assert "headrace_internal.history" in {row["name"] for row in tables}
        for row in tables:
            with suppress(UnknownStream):  # a segment that the janitor has dropped meanwhile
                for statement in ("vacuum full {name}", "cluster {name} using {index}", "vacuum freeze {name}"):
                    await database.fetch(statement.format(name=row["name"], index=row["key"]))
        for prefix in "ab":
            await publish(apps[0], 2, prefix=prefix)
        await others_are_handled(apps[0], judge)
        await end(apps, judge)
        assert [app.statistics()["consumers"]["orders:ship"]["lost"] for app in apps] == [0, 0]
    judge.check(last=2, once=True)
