"""The schema of a release is upgraded to that of this code, and then through further revisions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace import store
from headrace.store.database import revisions
from tests.support import servers
from tests.upgrade.catalogue import catalogue, differences
from tests.upgrade.lock import FILE, ROOT
from tests.upgrade.release import releases, unpacked
from tests.upgrade.synthetic import three_more

pytestmark = pytest.mark.process

CURRENT = ROOT / "framework"


def migrate(package: Path, dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `headrace migrate` of a package."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "migrate", "--database", dsn, *options],
        env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def found(dsn: str) -> Mapping[str, list[str]]:
    """The catalogue of a database."""
    return servers.run(catalogue(dsn))


@pytest.mark.parametrize("archive", releases(), ids=lambda path: path.name)
def test_an_upgraded_schema_equals_a_fresh_one(archive: Path, empty_dsn: str, dsn: str, tmp_path: Path) -> None:
    release = unpacked(archive, tmp_path / "release")
    for package in (release, CURRENT):
        done = migrate(package, empty_dsn)
        assert done.returncode == 0, done.stderr
    assert not differences(found(empty_dsn), found(dsn))


@pytest.mark.long
def test_three_revisions_up_equal_a_fresh_schema_and_no_process_takes_them_back(
    empty_dsn: str, server_dsn: str, tmp_path: Path
) -> None:
    released = [unpacked(archive, tmp_path / archive.name) for archive in releases()]
    later = three_more(CURRENT, tmp_path)
    for package in (*released, CURRENT, *later):
        done = migrate(package, empty_dsn)
        assert done.returncode == 0, done.stderr
    before = found(empty_dsn)
    for package in (*released, CURRENT, later[1]):
        assert migrate(package, empty_dsn).returncode == 0
        assert migrate(package, empty_dsn, "--check").returncode == 0
    assert not differences(found(empty_dsn), before)
    with servers.clone(server_dsn, None) as fresh:
        assert migrate(later[2], fresh).returncode == 0
        assert not differences(found(fresh), before)


@pytest.mark.parametrize("archive", releases(), ids=lambda path: path.name)
def test_a_released_revision_never_changes(archive: Path, tmp_path: Path) -> None:
    """A process of the release would take the changed schema for its own."""
    released = unpacked(archive, tmp_path) / FILE.relative_to(CURRENT)
    lines = [line for line in released.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    now = FILE.read_text(encoding="utf-8").splitlines()
    changed = [line.split()[0] for line in lines if line not in now]
    assert not changed, (
        f"Revision {', '.join(changed)} was released with {archive.name}, and its SQL differs now. Add the next file to"
        " store/sql/migrations/, put back the lines of revisions.lock, and run: make revisions"
    )


@pytest.mark.asyncio
async def test_migrations_name_the_locks_that_they_take(empty_dsn: str) -> None:
    """`headrace migrate --plan` prints them."""
    database = store.Database(empty_dsn)
    await database.open()
    async with database.transaction() as connection:
        first, *later = revisions.migrations()
        await connection.execute(
            "create schema headrace_internal; create schema headrace; create schema headrace_streams"
        )
        await connection.execute(first.sql)
    for migration in later:
        async with database.transaction() as connection:
            tables = {
                row["name"]
                for row in await connection.fetch(
                    "select oid::regclass::text as name from pg_class where relkind = 'r'"
                )
            }
            await connection.execute(f"{migration.sql}\n; select")  # it may consist of a comment
            held = await connection.fetch(
                """select relation::regclass::text as name, lower(trim(regexp_replace(replace(mode, 'Lock', ''), '([A-Z])', ' \\1', 'g'))) as mode
                   from pg_locks where pid = pg_backend_pid() and relation is not null
                   and mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"""
            )
            locks = {(row["name"], row["mode"]) for row in held if row["name"] in tables}
            assert locks == set(migration.locks), (
                f"Write the locks of {migration.version:04}_{migration.name}.sql into its comments, see store/database/revisions.py"
            )
    await database.close()
