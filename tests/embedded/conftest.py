"""Real servers in temporary directories, and real processes that use them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace.embedded import EmbeddedPostgres

ASK_AND_WAIT = """
import sys
from headrace.embedded import EmbeddedPostgres
with EmbeddedPostgres(sys.argv[1]).acquire() as tenancy:
    print(tenancy.url, flush=True)
    sys.stdin.readline()
"""


class User:
    """Another process that uses the server. It has acquired it when `url` returns, and releases it on request."""

    def __init__(self, data_dir: Path, program: str = ASK_AND_WAIT, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> int:
        self.process.communicate("\n", timeout=30)
        return self.process.returncode

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)

    def end(self) -> None:
        if self.process.returncode is None:
            self.kill()


@pytest.fixture
def user() -> Iterator[Callable[..., User]]:
    """Start processes that use a server."""
    with contextlib.ExitStack() as stack:

        def start(data_dir: Path, *args: Any, **options: Any) -> User:
            process = User(data_dir, *args, **options)
            stack.callback(process.end)
            return process

        yield start


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A data directory that is created once for the tests of a module."""
    pg = EmbeddedPostgres(tmp_path_factory.mktemp("made") / "postgres")
    pg.acquire().release()
    yield pg
    pg.destroy()


@pytest.fixture
def pg(made: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """The module's server, which is stopped when the test begins."""
    yield made
    made.stop("immediate")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A data directory of the test's own, in which nothing has been created yet."""
    pg = EmbeddedPostgres(tmp_path / "postgres")
    yield pg
    pg.destroy()


def ask(url: str, sql: str) -> Any:
    """Return the first value of the query's result."""

    async def asking() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(asking())


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
