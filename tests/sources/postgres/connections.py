"""A captured database, a connection to it, and slots that are dropped at the end of the test."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import asyncpg
from anyio.abc import SocketAttribute, SocketStream
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.sources.postgres.connection.replication_stream import Replication, ReplicationStream
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database.catalog import load_tables
from headrace.sources.postgres.database.publications import LOCK_TIMEOUT
from headrace.sources.postgres.database.slots import ensure_slot, find_slot
from headrace.sources.postgres.database.upkeep import PublicationUpkeep, Upkeep
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.captured import drop_slots

APPLICATION = "headrace test"

WALSENDERS = """(select r.*, a.datname from pg_stat_replication as r join pg_stat_activity as a using (pid)
                  where a.datname = current_database()) as walsenders"""
"""WAL senders of this database only, because the server is shared with other tests."""

Behaviour = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[SourceConnection]:
    """A connection to the database. All slots of the database are dropped at the end."""
    try:
        async with await SourceConnection.connect(dsn, application_name=APPLICATION) as connection:
            yield connection
    finally:
        sql = await asyncpg.connect(dsn)
        try:
            await drop_slots(sql)
        finally:
            await sql.close()


@asynccontextmanager
async def replicating(
    dsn: str,
    connection: SourceConnection,
    *,
    slot: str | None = None,
    publication: str = "all_of_it",
    keep: bool = True,
    **options: Any,
) -> AsyncIterator[ReplicationStream]:
    """A replication stream from a slot, which is created if it is missing, and which has a new name by default. It is kept alive."""
    slot = slot or fresh()
    found = await find_slot(connection, slot)
    position = await ensure_slot(
        connection, slot, owned=True, expected=None if found is None else found.confirmed, application_name=APPLICATION
    )
    replication = await ReplicationStream.start(
        dsn,
        Replication(slot=slot, publications=[publication], position=position, **{"confirm_interval": 0.01, **options}),
        application_name=APPLICATION,
    )
    try:
        async with anyio.create_task_group() as group:
            if keep:
                group.start_soon(replication.send_statuses)
            yield replication
            group.cancel_scope.cancel()
    finally:
        await replication.close()


async def ensure_publication(
    connection: SourceConnection, spec: PostgresSpec, name: str, *, lock_timeout: float = LOCK_TIMEOUT,
    captured_before: bool = False,
) -> Upkeep:  # fmt: skip
    """Make sure that a source has its publication, as the start of its capture does."""
    tables = list((await load_tables(connection, spec.tables)).values())
    upkeep = await PublicationUpkeep(spec, name, lock_timeout=lock_timeout).ensure(
        connection, tables, captured_before=captured_before
    )
    if upkeep.stop is not None:
        raise upkeep.stop
    return upkeep


async def read_on(replication: ReplicationStream) -> None:
    """Read until reading fails."""
    while True:
        await replication.read()


def fresh(prefix: str = "headrace_test") -> str:
    """Return a name that nothing on the server has."""
    return f"{prefix}_{uuid4().hex}"


def with_options(dsn: str, **settings: str) -> str:
    """Return the DSN with additional session settings."""
    return make_conninfo(dsn, options=" ".join(f"-c {name}={value}" for name, value in settings.items()))


def as_role(dsn: str, role: str, password: str) -> str:
    """Return the DSN with another role."""
    return make_conninfo(dsn, user=role, password=password)


def parts(dsn: str) -> dict[str, str]:
    """Return the parts of a DSN."""
    return {name: str(value) for name, value in conninfo_to_dict(dsn).items()}


@asynccontextmanager
async def server_that(behaves: Behaviour) -> AsyncIterator[int]:
    """Run a fake server on a separate port, for behaviour that is rare in a real server."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:

        async def handle(stream: SocketStream) -> None:
            async with stream:
                try:
                    await behaves(stream)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return  # the client has gone

        group.start_soon(listener.serve, handle)
        yield listener.extra(SocketAttribute.local_port)
        group.cancel_scope.cancel()


def refusing(sqlstate: str, message: str) -> Behaviour:
    """Return the behaviour of a server that refuses every connection with this error."""

    async def behave(stream: SocketStream) -> None:
        body = b"".join(
            field + text.encode() + b"\0"
            for field, text in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", sqlstate), (b"M", message))
        )
        await _startup(stream)
        await stream.send(b"E" + struct.pack("!I", len(body) + 5) + body + b"\0")

    return behave


async def silent(stream: SocketStream) -> None:
    """Behaviour of a server that accepts the connection and sends nothing."""
    while True:
        await stream.receive()


async def _startup(stream: SocketStream) -> None:
    """Read the startup of a client. TLS is declined."""
    while (await stream.receive())[4:8] in (_SSL, _GSS):
        await stream.send(b"N")


_SSL, _GSS = struct.pack("!I", 80877103), struct.pack("!I", 80877104)
