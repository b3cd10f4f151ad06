"""A server with a WAL archive, which can be restored to an earlier moment at the same address."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg

from headrace.embedded import EmbeddedPostgres
from headrace.embedded.os_user import OsUser, os_user_for
from headrace.embedded.program_copies import usable_by
from tests.support.clusters import client_programs, cluster
from tests.support.servers import run

PATIENCE = 60.0
"""Timeout of a recovery in seconds."""


class Archived:
    """A running server, its archive and its last base backup.

    Attributes:
        server: The server. Its URL stays the same across a recovery.
    """

    def __init__(self, server: EmbeddedPostgres, home: Path) -> None:
        self.server = server
        self._archive = home / "archive"
        self._backup = home / "backup"
        self._data = server.status().cluster_dir
        self._account: OsUser = os_user_for(self._data)

    def back_up(self) -> None:
        """Take the base backup from which every recovery starts."""
        url = urlsplit(self.server.url())
        query = parse_qs(url.query)
        programs = usable_by(self._account, client_programs("pg_basebackup"))
        answer = self._account.run(
            [
                *(programs.program("pg_basebackup"), "-D", self._backup, "-X", "none", "-c", "fast", "--no-manifest"),
                *("-h", query["host"][0], "-p", query["port"][0], "-U", url.username or ""),
            ]
        )
        assert answer.returncode == 0, answer.stdout

    def back_up_again(self) -> None:
        """Take another base backup on the current timeline. The next recovery starts from it."""
        shutil.rmtree(self._backup)
        self.back_up()

    def recover(self, point: str) -> None:
        """Stop the server, restore it to a restore point (`pg_create_restore_point`) on a new timeline,
        and start it.
        """
        self.server.stop("fast")  # archives the last of the WAL
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data, symlinks=True)
        for path in (self._data, *self._data.rglob("*")):
            self._account.own(path)
        self._data.chmod(0o700)
        (self._data / "pg_wal" / "archive_status").mkdir(exist_ok=True)
        self._account.own(self._data / "pg_wal" / "archive_status")
        settings = {
            "restore_command": f"cp {self._archive}/%f %p",
            "recovery_target_name": point,
            "recovery_target_action": "promote",
        }
        self._account.write(self._data / "recovery.signal", "")
        self._account.write(
            self._data / "custom.conf", "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        )
        self.server.start()  # accepts readers before the recovery has ended
        self._wait_for_promotion()

    def _wait_for_promotion(self) -> None:
        async def wait() -> None:
            connection = await asyncpg.connect(self.server.url())
            try:
                async with asyncio.timeout(PATIENCE):
                    while await connection.fetchval("select pg_is_in_recovery()"):
                        pass  # each query takes its time
            finally:
                await connection.close()

        run(wait())


@contextmanager
def archived(directory: Path, **settings: str) -> Iterator[Archived]:
    """A server that archives its WAL, removed at the end with all its files."""
    home = Path(tempfile.mkdtemp(prefix="headrace-archive-"))
    try:
        account = os_user_for(directory)
        for path in (home, home / "archive"):
            path.mkdir(exist_ok=True)
            account.own(path)
        options = {"archive_mode": "on", "archive_command": f"cp %p {home}/archive/%f", **settings}
        with cluster(directory, **options) as server:
            yield Archived(server, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
