"""The disk of the server's WAL fills up, which stops Postgres. Later space is freed and the server is restarted."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from headrace import App, Message, StoreUnavailable
from headrace.embedded import EmbeddedPostgres
from headrace.runtime.messages.transaction import Transaction
from tests.runtime.running import Seen
from tests.server.stdlib_client import Answer, Api
from tests.support.clusters import cluster
from tests.support.serving import serving

pytestmark = pytest.mark.asyncio

MEGABYTE = 1 << 20
RECOVERED = 30.0
"""Seconds within which everything continues once there is space, including the server's start. The
promise is 5 on an idle machine.
"""


class WalDisk:
    """A server with its WAL on a separate disk of 96 MB."""

    def __init__(self, server: EmbeddedPostgres, path: Path) -> None:
        self.server = server
        self._path = path
        self._ballast = path / "ballast"

    def move_wal(self) -> None:
        wal, account = self.server.status().cluster_dir / "pg_wal", pwd.getpwnam(self.server.status().account)
        self.server.stop()
        shutil.move(wal, self._path / "pg_wal")
        wal.symlink_to(self._path / "pg_wal")
        for path in (wal, self._path, self._path / "pg_wal", *(self._path / "pg_wal").rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
        self.server.start()

    def fill(self) -> None:
        """Leave one megabyte free, which is less than a WAL segment."""
        disk = os.statvfs(self._path)
        self._ballast.write_bytes(bytes(disk.f_bavail * disk.f_frsize - MEGABYTE))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[WalDisk]:
    path = Path(tempfile.mkdtemp(prefix="headrace-wal-"))
    path.chmod(0o755)
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", path]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        path.rmdir()
        pytest.skip("only root can mount a small disk for the WAL, and not everywhere")
    try:
        with cluster(tmp_path / "postgres", max_wal_size="64MB", min_wal_size="32MB") as server:
            disk = WalDisk(server, path)
            disk.move_wal()
            yield disk
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        path.rmdir()


async def test_a_full_disk_of_the_wal_loses_nothing_and_work_continues_afterwards(disk: WalDisk) -> None:
    app, seen = App(disk.server.url()), Seen()

    @app.consumer("orders", backoff="10ms")
    async def ship(message: Message) -> None:
        seen.note(message.data["n"])

    @app.consumer("orders", transactional=True, backoff="10ms")
    async def bill(message: Message, tx: Transaction) -> None:
        await tx.execute("insert into bills values ($1)", message.data["n"])

    async with app:
        await app.database.fetch("create table bills (n int)")
    with serving(disk.server.url()) as url:
        api = Api(url)
        async with app.running():
            await app.publish("orders", "a", {"n": 0})
            await app.idle()
            disk.fill()
            published = await until_refused(app, api)
            disk.make_room()
            with anyio.fail_after(RECOVERED):
                for do in (lambda: app.publish("orders", "a", {"n": published}), lambda: post(api, published + 1)):
                    await until_taken(disk.server, do)
                await app.idle()
        async with app:
            bills = [row["n"] for row in await app.database.fetch("select n from bills order by ctid")]
            # A message of a failed publish may be stored, at most once. A confirmed message must be.
            rows = await app.database.fetch("select (data ->> 'n')::int as n from headrace_streams.orders order by seq")
            stored = [row["n"] for row in rows]
    assert set(range(published + 2)) <= set(stored)
    assert sorted(bills) == sorted(stored)
    assert list(dict.fromkeys(seen.notes)) == list(dict.fromkeys(stored))


async def until_refused(app: App, api: Api) -> int:
    """Publish by the app and over HTTP in turn, until both have reported a failure. Returns how many
    messages were published.
    """
    published, away, status = 1, False, 0
    with anyio.fail_after(60):
        while not away or status != 503:
            try:
                await app.publish("orders", "a", {"n": published, "text": secrets.token_hex(100_000)})
                published += 1
            except StoreUnavailable:
                away = True
            try:
                await post(api, published, secrets.token_hex(100_000))
                published += 1
            except Answer as refused:
                status = refused.status
    return published


async def post(api: Api, number: int, text: str = "") -> None:
    body = {"messages": [{"key": "a", "data": {"n": number, "text": text}}]}
    await anyio.to_thread.run_sync(api.post, "/v1/streams/orders/messages", body)


async def until_taken(server: EmbeddedPostgres, do: Callable[[], Awaitable[Any]]) -> None:
    """Retry until the call succeeds. The server may have restarted automatically, or may have stopped
    just before there was space.
    """
    while True:
        await anyio.to_thread.run_sync(server.start)
        try:
            await do()
            return
        except (StoreUnavailable, Answer):
            await anyio.sleep(0.05)
