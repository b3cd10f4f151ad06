"""The commands of docs/backup.md run, in their order."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import anyio
import asyncpg
import pytest

from headrace import store, sweep
from headrace.model.specs import ConsumerSpec
from headrace.testing.databases import on_server
from tests.runtime.running import eventually
from tests.support.clusters import cluster
from tests.support.copies import copy_of, programs_of, require_programs
from tests.support.readers import Clock, Reader, publish
from tests.support.servers import opened

pytestmark = [pytest.mark.asyncio, pytest.mark.process]

PAGE = (Path(__file__).parents[2] / "docs" / "backup.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]+)\n|^```(sh|sql)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(section: str, kind: str) -> list[str]:
    """The blocks of a section."""
    found, current = [], ""
    for title, language, text in BLOCKS:
        current = title or current
        if language == kind and current == section:
            found.append(text.strip())
    assert found, f"the page has no section {section!r} with such blocks any more"
    return found


def shell(command: str, directory: Path, programs: Path, **variables: str) -> None:
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def a_reader(database: store.Database) -> Reader:
    """A consumer of three messages that has acked the first."""
    await store.migrate(database)
    await store.create_stream(database, "orders")
    spec = ConsumerSpec(stream="orders", name="ship")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, Clock())
    await publish(database, *"abc")
    assert await reader.drain(limit=1, calls=1) == [1]
    await sweep(database)
    return reader


async def goes_on(reader: Reader, dsn: str) -> None:
    async with opened(dsn) as copy:
        await publish(copy, "d")
        there = Reader(copy, reader.spec, reader.id, reader.clock)
        assert await there.drain("bob") == [2, 3, 4]


async def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    with cluster(tmp_path / "postgres", wal_level="logical") as server, copy_of(programs_of(server)) as other:
        programs = programs_of(server).bin
        other.initdb()
        other.start()
        urls = {"DATABASE_URL": server.url(), "REPLICA_URL": other.url}
        for name in ("NEW_DATABASE", "OTHER_DATABASE"):
            await execute(server.url(), f"create database {name.lower()}")
            urls[f"{name}_URL"] = on_server(server.url(), name.lower())
        async with opened(server.url()) as database:
            reader = await a_reader(database)

            for command in commands("Dumps", "sh") + commands("Base backups", "sh"):
                await anyio.to_thread.run_sync(lambda c=command: shell(c, tmp_path, programs, **urls))  # type: ignore[misc]
            assert (tmp_path / "base" / "backup_manifest").exists()
            for name in ("NEW_DATABASE_URL", "OTHER_DATABASE_URL"):
                await goes_on(reader, urls[name])

            publication, subscription, drop, mend = commands("A logical replica as the new server", "sql")
            await execute(server.url(), publication)
            for command in commands("A logical replica as the new server", "sh"):
                await anyio.to_thread.run_sync(lambda c=command: shell(c, tmp_path, programs, **urls))  # type: ignore[misc]
            await execute(other.url, subscription.replace("$DATABASE_URL", server.url()))
            async with opened(other.url) as replica:

                async def synchronized() -> bool:
                    return [
                        row[0] for row in await replica.fetch("select distinct srsubstate from pg_subscription_rel")
                    ] == [b"r"]

                await eventually(synchronized)
            for statement in (drop, mend, *commands("Sequences", "sql")):
                await execute(other.url, statement)
            await goes_on(reader, other.url)


@pytest.mark.long
async def test_the_command_of_pg_upgrade_runs() -> None:
    before, after = require_programs(16, "pg_resetwal"), require_programs(18, "pg_upgrade")
    with copy_of(before) as old, copy_of(after) as new:
        old.initdb()
        old.start()
        async with opened(old.url) as database:
            reader = await a_reader(database)
        old.stop()
        new.initdb("--no-data-checksums", database=False)
        (command,) = commands("pg_upgrade", "sh")
        places = {
            "OLD_BIN": old.programs.bin, "NEW_BIN": new.programs.bin, "OLD_DATA": old.data, "NEW_DATA": new.data,
            "PGUSER": "headrace", "PATH": f"{new.programs.bin}:{os.environ['PATH']}",
        }  # fmt: skip
        given = "".join(f"export {name}='{value}'; " for name, value in places.items())
        done = new.account.run(["bash", "-ec", f"cd {new.home}; {given}{command}"])
        assert done.returncode == 0, done.stdout
        new.start()
        await goes_on(reader, new.url)
