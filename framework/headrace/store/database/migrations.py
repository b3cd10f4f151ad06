"""The schema: numbered migrations of tables, and functions that are replaced whenever they have changed.

Everything happens in one transaction under a transaction-level advisory lock. So two processes that start
at the same time don't conflict, and a migration that fails leaves nothing behind.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

import asyncpg
import msgspec

from headrace.model.errors import SchemaError
from headrace.model.text.masking import masked
from headrace.store.database.pool import Database

_LOCK = "select pg_advisory_xact_lock(1212498508, -1)"
_SQL = files("headrace.store") / "sql"

# In the order of their dependencies: types before the functions that use them.
FUNCTIONS = ("_prologue", "history", "segments", "streams", "notifications", "publish", "conditions", "consumers", "lookups", "holes", "parking", "due_messages", "scan",
             "rate", "lease", "settle", "transactions", "seek", "replay", "captures", "backfills", "sources", "operate", "dead_letters", "info", "peek", "key_states", "retention",
             "ranges", "writes", "planning", "gaps", "removal", "schedule", "upkeep", "leader", "workers", "sequences", "views", "_epilogue")  # fmt: skip


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations that this code knows, in order."""
    found = sorted(entry.name for entry in (_SQL / "migrations").iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(int(name[:4]), name[5:-4], (_SQL / "migrations" / name).read_text(encoding="utf-8")) for name in found
    ]


def functions() -> str:
    """The text of all server functions."""
    return "\n".join((_SQL / "functions" / f"{name}.sql").read_text(encoding="utf-8") for name in FUNCTIONS)


async def migrate(database: Database) -> list[str]:
    """Migrate the schema to this code's version.

    Returns:
        What was done, a phrase for each step. Empty if nothing was.

    Raises:
        SchemaError: the schema is newer than this code.
    """
    known, wanted = migrations(), functions()
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    async with database.transaction() as connection:
        if await _state(connection) == (known[-1].version, digest):
            return []
        await connection.execute(_LOCK)
        version, installed = await _state(connection)
        if version > known[-1].version:
            raise SchemaError(
                f"The schema in {masked(database.dsn)} has version {version}, and this Headrace supports versions up to"
                f" {known[-1].version}. Upgrade Headrace: pip install --upgrade headrace."
            )
        done = []
        if version == 0:
            await _refuse_foreign_tables(connection, database)
            await connection.execute(_GROUND)
        for migration in known[version:]:
            await connection.execute(migration.sql)
            await connection.execute(
                "insert into headrace_internal.migrations (version, name) values ($1, $2)",
                migration.version,
                migration.name,
            )
            done.append(f"applied migration {migration.version} ({migration.name})")
        if installed != digest:
            await connection.execute(wanted)
            await connection.execute(
                "update headrace_internal.migrations set functions = $1 where version = $2", digest, known[-1].version
            )
            done.append("installed the server functions")
        return done


_GROUND = """
create schema if not exists headrace;
create schema if not exists headrace_internal;
create schema if not exists headrace_streams;
create table headrace_internal.migrations (
    version     int primary key,
    name        text not null,
    functions   text,               -- the SHA-256 of the server functions' text
    applied_at  timestamptz not null default clock_timestamp()
);
comment on schema headrace is 'Headrace: functions for users. select headrace.publish(stream, key, data)';
comment on schema headrace_internal is 'Headrace: its tables and functions, which may change with each version';
comment on schema headrace_streams is 'Headrace: one table of messages per stream';
"""


async def _state(connection: asyncpg.Connection[Any]) -> tuple[int, str | None]:
    """The schema's version, 0 for none, and the digest of its functions."""
    # Not to_regclass: it would still return what it found before this call waited for another migration.
    if not await connection.fetchval(
        "select exists (select from pg_tables where schemaname = 'headrace_internal' and tablename = 'migrations')"
    ):
        return 0, None
    row = await connection.fetchrow(
        "select version, functions from headrace_internal.migrations order by version desc limit 1"
    )
    return (row["version"], row["functions"]) if row else (0, None)


async def _refuse_foreign_tables(connection: asyncpg.Connection[Any], database: Database) -> None:
    # Headrace has had only views in this database schema since its first release.
    table = await connection.fetchval("select min(tablename) from pg_tables where schemaname = 'headrace'")
    if table is not None:
        raise SchemaError(
            f"The database schema headrace in {masked(database.dsn)} has tables already, such as headrace.{table}. Other"
            " software or a version of Headrace before 0.1.0 created them. Use another database, or remove the schema"
            " with all its data: drop schema headrace cascade."
        )


async def schema_version(database: Database) -> int:
    """The version of the schema in the database, 0 for none."""
    async with database.transaction() as connection:
        return (await _state(connection))[0]
