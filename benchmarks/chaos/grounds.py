"""The ground of a scenario: a server of its own, or the given database, with what the fault needs around it."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio.to_thread

from tests.support.silence import Proxy, proxied
from tests.torture.promises.faults import asked
from tests.torture.promises.nodes import Node
from tests.torture.promises.routes import PGBOUNCER, Pooler

DISK_SIZE = "160m"
"""The size of the disk that a fault fills. The tables of an empty database take 20 MB of it."""

SETTINGS = {"fsync": "on", "full_page_writes": "on", "max_connections": "100", "wal_keep_size": "256MB"}
"""Settings of the servers that a run starts. Few connections, since one scenario takes them all."""

_SYNCHRONOUS = "select count(*) from pg_stat_replication where sync_state = 'sync'"


class Skipped(Exception):
    """A scenario can't be run here."""


@dataclass
class Ground:
    """Where a scenario takes place.

    Attributes:
        url: the database for workers and publishers.
        direct: the database for the run's own queries, which no proxy or pooler disturbs.
        node: the server, if the run has started it.
        standby: its synchronous standby.
        proxy: the proxy between the processes and the server.
        pooler: the pgbouncer between them.
        disk: the disk of the tables.
        clock: the clock of the server and of all processes.
    """

    url: str
    direct: str
    node: Node | None = None
    standby: Node | None = None
    proxy: Proxy | None = None
    pooler: Pooler | None = None
    disk: SmallDisk | None = None
    clock: Clock | None = None


Enter = Callable[[str | None], AbstractAsyncContextManager[Ground]]
"""Prepares a ground. The argument is the URL of the given database, or None."""


@asynccontextmanager
async def anywhere(database: str | None) -> AsyncIterator[Ground]:
    """The given database, or one on a server that is started for it."""
    if database is not None:
        yield Ground(database, database)
    else:
        async with own_server(None) as ground:
            yield ground


@asynccontextmanager
async def own_server(database: str | None) -> AsyncIterator[Ground]:
    """A server that the scenario may stop and crash."""
    _refuse(database, "it needs control of the server")
    async with _started(Node("chaos", SETTINGS)) as node:
        yield Ground(node.url, node.url, node)


@asynccontextmanager
async def behind_a_proxy(database: str | None) -> AsyncIterator[Ground]:
    """A database behind a proxy."""
    if database is not None and ("," in urlsplit(database).netloc or "," in urlsplit(database).query):
        raise Skipped("the proxy needs a URL with one host")
    async with anywhere(database) as ground, proxied(ground.direct) as proxy:
        ground.url, ground.proxy = proxy.url(), proxy
        yield ground


@asynccontextmanager
async def with_a_standby(database: str | None) -> AsyncIterator[Ground]:
    """A server and its synchronous standby, reached by a URL with both hosts."""
    async with own_server(database) as ground:
        assert ground.node is not None
        standby = Node("chaos-standby", SETTINGS)
        try:
            await anyio.to_thread.run_sync(standby.follow, ground.node)
            await asked(ground.direct, "alter system set synchronous_standby_names = 'standby'")
            await asked(ground.direct, "select pg_reload_conf()")
            with anyio.fail_after(30):
                while not await asked(ground.direct, _SYNCHRONOUS):  # noqa: ASYNC110 - it is the database that is asked
                    await anyio.sleep(0.1)
            ground.standby, ground.url = standby, either(ground.node, standby)
            yield ground
        finally:
            await anyio.to_thread.run_sync(standby.destroy)


@asynccontextmanager
async def behind_a_pooler(database: str | None) -> AsyncIterator[Ground]:
    """A database behind pgbouncer in transaction mode."""
    _refuse(database, "it needs a pooler that it may stop")
    if PGBOUNCER is None:
        raise Skipped("pgbouncer is not on the path")
    async with own_server(None) as ground:
        assert ground.node is not None
        ground.pooler = Pooler(ground.node)
        try:
            await ground.pooler.ready()
            ground.url = ground.pooler.url
            yield ground
        finally:
            ground.pooler.stop()


@asynccontextmanager
async def on_a_small_disk(database: str | None) -> AsyncIterator[Ground]:
    """A database whose tables lie on a small disk. Its WAL does not."""
    async with own_server(database) as ground:
        assert ground.node is not None
        with _mounted() as disk:
            shutil.chown(disk.path, ground.node.owner)
            await asked(ground.direct, f"create tablespace small location '{disk.path}'")
            await asked(ground.direct, "create database small tablespace small")
            ground.url = ground.direct = urlsplit(ground.direct)._replace(path="/small").geturl()
            ground.disk = disk
            yield ground
            await anyio.to_thread.run_sync(ground.node.stop, "immediate")


@asynccontextmanager
async def on_a_false_clock(database: str | None) -> AsyncIterator[Ground]:
    """A server and processes whose wall clock jumps as the scenario says. Monotonic clocks stay as they are, as where a
    machine's time is set."""
    _refuse(database, "it needs control of the server's clock")
    with Clock.made() as clock:
        before = {name: os.environ.get(name) for name in clock.environment}
        os.environ |= clock.environment
        try:
            async with _started(Node("chaos", SETTINGS, environment=clock.environment)) as node:
                yield Ground(node.url, node.url, node, clock=clock)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _refuse(database: str | None, why: str) -> None:
    if database is not None:
        raise Skipped(f"{why}, so it runs without --database only")


def either(first: Node, second: Node) -> str:
    """The URL of whichever of two servers accepts writes."""
    parts = urlsplit(first.url)
    query = f"host={first.socket},{second.socket}&port=5432,5432&target_session_attrs=read-write"
    return parts._replace(query=query).geturl()


@asynccontextmanager
async def _started(node: Node) -> AsyncIterator[Node]:
    try:
        await anyio.to_thread.run_sync(node.make)
        yield node
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(node.destroy)


class SmallDisk:
    """A disk of `DISK_SIZE` in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all that is free."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def make_room(self) -> None:
        self._ballast.unlink()


@contextmanager
def _mounted() -> Iterator[SmallDisk]:
    path = Path(tempfile.mkdtemp(prefix="headrace-disk-"))  # the server's user can enter it
    path.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        path.rmdir()
        raise Skipped("only root can mount a small disk, and not in every container")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
        path.rmdir()


_SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *ahead;  /* seconds that the wall clock is ahead */

__attribute__((constructor)) static void find_clock(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) ahead = page;
        close(file);
    }
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int answer = syscall(SYS_clock_gettime, id, now);
    if (answer == 0 && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int answer = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return answer;
}

time_t time(time_t *into) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into) *into = exact.tv_sec;
    return exact.tv_sec;
}
"""
"""A library that is loaded before the C library and moves the wall clock. No program is changed, nor the machine's clock."""


class Clock:
    """The wall clock of all programs that start with `environment`."""

    def __init__(self, home: Path) -> None:
        self._file = home / "ahead"
        self.environment = {"LD_PRELOAD": str(home / "clock.so"), "CHAOS_CLOCK": str(self._file)}
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        """Set the clock to so many seconds ahead of the true time. Negative is behind it."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Clock]:
        """A clock that is right so far."""
        compiler = shutil.which("cc")
        if compiler is None or not Path("/proc").exists():
            raise Skipped("false clocks need Linux and a C compiler (cc)")
        home = Path(tempfile.mkdtemp(prefix="headrace-clock-"))
        try:
            home.chmod(0o755)  # the server runs as another user
            (home / "clock.c").write_text(_SHIM)
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", home / "clock.so", home / "clock.c"], check=True)
            yield cls(home)
        finally:
            shutil.rmtree(home)
