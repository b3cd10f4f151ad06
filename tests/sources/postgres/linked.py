"""A captured database, seen through a link, and slots of it that end with the test."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import anyio
import asyncpg
from anyio.abc import SocketAttribute, SocketStream
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.sources.postgres.connection.feed import Feed
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.server.slots import ensure_slot, slot_of
from tests.sources.postgres.captured import drop_slots

APPLICATION = "headrace test"

WALSENDERS = """(select r.*, a.datname from pg_stat_replication as r join pg_stat_activity as a using (pid)
                  where a.datname = current_database()) as walsenders"""
"""Those of this database: the server is shared with other tests."""

Behaviour = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def linked(dsn: str) -> AsyncIterator[Link]:
    """A link; at the end no slot of the database is left."""
    try:
        async with await Link.connect(dsn, application_name=APPLICATION) as link:
            yield link
    finally:
        sql = await asyncpg.connect(dsn)
        try:
            await drop_slots(sql)
        finally:
            await sql.close()


@asynccontextmanager
async def feeding(
    dsn: str, link: Link, *, slot: str | None = None, publication: str = "all_of_it", keep: bool = True, **options: bool
) -> AsyncIterator[Feed]:
    """A feed from a slot, which is made if it isn't there, by itself a fresh one; kept alive."""
    slot = slot or fresh()
    found = await slot_of(link, slot)
    position = await ensure_slot(
        link, slot, ours=True, expected=None if found is None else found.confirmed, application_name=APPLICATION
    )
    feed = await Feed.start(
        dsn, slot=slot, publication=publication, position=position, application_name=APPLICATION, **options
    )
    try:
        async with anyio.create_task_group() as group:
            if keep:
                group.start_soon(feed.keep)
            yield feed
            group.cancel_scope.cancel()
    finally:
        await feed.close()


async def read_on(feed: Feed) -> None:
    """Read until that fails."""
    while True:
        await feed.read()


def fresh(prefix: str = "headrace_test") -> str:
    """A name that nothing on the server has."""
    return f"{prefix}_{uuid4().hex}"


def with_options(dsn: str, **settings: str) -> str:
    """The DSN, with settings of the session's own."""
    return make_conninfo(dsn, options=" ".join(f"-c {name}={value}" for name, value in settings.items()))


def as_role(dsn: str, role: str, password: str) -> str:
    """The DSN, as somebody else."""
    return make_conninfo(dsn, user=role, password=password)


def parts(dsn: str) -> dict[str, str]:
    """What a DSN says."""
    return {name: str(value) for name, value in conninfo_to_dict(dsn).items()}


@asynccontextmanager
async def server_that(behaves: Behaviour) -> AsyncIterator[int]:
    """A server of our own making, on a port of its own, for what a real one does seldom."""
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


def refusing(sqlstate: str, told: str) -> Behaviour:
    """A server's way to let nobody in."""

    async def behave(stream: SocketStream) -> None:
        body = b"".join(
            field + text.encode() + b"\0"
            for field, text in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", sqlstate), (b"M", told))
        )
        await _startup(stream)
        await stream.send(b"E" + struct.pack("!I", len(body) + 5) + body + b"\0")

    return behave


async def silent(stream: SocketStream) -> None:
    """A server that takes the connection, and says nothing."""
    while True:
        await stream.receive()


async def _startup(stream: SocketStream) -> None:
    """Take in what a client begins with. There is no TLS."""
    while (await stream.receive())[4:8] in (_SSL, _GSS):
        await stream.send(b"N")


_SSL, _GSS = struct.pack("!I", 80877103), struct.pack("!I", 80877104)
