"""A streaming query writes while its driver, its connections and the server are killed repeatedly. Each
row is published once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace import store
from headrace.embedded import EmbeddedPostgres
from headrace.model.errors import HeadraceError
from tests.spark.processes import PATIENCE, environment
from tests.spark.written import Written
from tests.support import clusters, servers

pytestmark = pytest.mark.torture

FILES, ROWS = 24, 5000
KILLS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server that belongs to this test and may crash."""
    with clusters.cluster(tmp_path / "postgres") as postgres:
        yield postgres


class Driver:
    """A process of `tests.spark.writer_process`. It ends when all files are copied or when it is killed."""

    def __init__(self, written: Written, directory: Path) -> None:
        with (directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.writer_process", written.url, str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


def copied(written: Written) -> int:
    """Return the number of rows, or -1 while the server is unavailable."""
    try:
        return int(written.fetch("select count(*) from headrace_streams.copied")[0][0])
    except HeadraceError:
        return -1


def until_more(written: Written, than: int, driver: Driver) -> int:
    """Wait until there are more rows than that, or the driver has ended."""
    deadline = time.monotonic() + PATIENCE
    while (count := copied(written)) <= than and driver.process.poll() is None:
        assert time.monotonic() < deadline, f"{count} rows are there, and no more come"
        time.sleep(0.01)
    return count


def test_each_row_is_published_once_whatever_is_killed(server: EmbeddedPostgres, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}, logs in {tmp_path}")
    chance = random.Random(seed)
    written = Written(server.url())
    servers.run(migrate(written.url))
    written.create("saved")
    written.create("copied")
    (tmp_path / "in").mkdir()
    wanted = []
    for file in range(FILES):
        keys = [f"f{file}.k{n}" for n in range(ROWS)]
        wanted += keys
        path = tmp_path / "in" / f"{file}.txt"
        path.write_text("\n".join(keys))
        os.utime(path, (1_000_000_000 + file,) * 2)

    done = Counter[str]()
    seen, ended = 0, 0
    while True:
        driver = Driver(written, tmp_path)
        try:
            while done.total() < KILLS and driver.process.poll() is None:
                seen = max(seen, until_more(written, seen, driver))
                time.sleep(chance.uniform(0, 3))  # to kill at any point of a batch, not only after its commit
                victim = chance.choice(["driver", "connections", "server"])
                strike(victim, written, server, driver)
                done[victim] += 1
            if driver.process.wait(10 * PATIENCE) == 0:
                break
            ended += 1
        finally:
            driver.kill()
        assert ended <= 3 * KILLS, "it does not end"
    print(f"killed: {dict(done)}; drivers that ended before all was done: {ended}")
    assert Counter(written.keys("saved")) == Counter(f"k.{n}" for n in range(1000))
    assert Counter(written.keys("copied")) == Counter(wanted)
    assert written.staged() == 0


async def migrate(url: str) -> None:
    database = store.Database(url)
    await database.open()
    try:
        await store.migrate(database)
    finally:
        await database.close()


def strike(victim: str, written: Written, server: EmbeddedPostgres, driver: Driver) -> None:
    if victim == "driver":
        driver.kill()
    elif victim == "connections":
        written.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
    else:
        server.restart("immediate")
