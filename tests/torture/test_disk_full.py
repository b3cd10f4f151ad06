"""The disk of the database fills up, and space is freed later."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from headrace.app.app import App
from headrace.embedded import EmbeddedPostgres
from headrace.model.errors import StoreFull
from headrace.runtime.messages.message import Message
from tests.support import servers

MEGABYTE = 1 << 20


class Disk:
    """A disk of 32 MB. A file takes 8 MB of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self._ballast.write_bytes(bytes(8 * MEGABYTE))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    path = Path(tempfile.mkdtemp(prefix="headrace-disk-"))  # the server's user can't enter pytest's directory
    path.chmod(0o755)
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", path]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        path.rmdir()
        pytest.skip("only root can mount a small disk, and not everywhere")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        path.rmdir()


@pytest.fixture
def full_dsn(disk: Disk, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with its tables on that disk. The WAL is elsewhere, because the server
    would stop without it.
    """
    server = EmbeddedPostgres(tmp_path / "postgres", settings={"fsync": "off"})
    with server.acquire() as handle:
        try:
            shutil.chown(disk.path, server.status().account)
            servers.run(make_database(handle.url, disk.path))
            yield server.url("tiny")
        finally:
            server.destroy()


async def make_database(dsn: str, path: Path) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"create tablespace tiny location '{path}'")
        await connection.execute("create database tiny tablespace tiny")
    finally:
        await connection.close()


@pytest.mark.asyncio
async def test_a_full_disk_loses_nothing_and_work_continues_afterwards(full_dsn: str, disk: Disk) -> None:
    app = App(full_dsn)
    seen: list[int] = []

    @app.consumer("orders", backoff="10ms")
    async def ship(message: Message) -> None:
        seen.append(message.data["n"])

    async with app.running():
        published, complaint = await publish_until_full(app)
        assert "\n" not in complaint
        assert "is full" in complaint
        disk.make_room()
        await app.publish("orders", "a", {"n": published})
        await app.idle()
    assert seen == list(range(published + 1))


async def publish_until_full(app: App) -> tuple[int, str]:
    """Return how many messages were published, and the error of the one that was not."""
    for published in range(1000):
        try:
            await app.publish("orders", "a", {"n": published, "text": secrets.token_hex(50_000)})
        except StoreFull as full:
            return published, str(full)
    raise AssertionError("a disk of 32 MB took 100 MB")
