"""Database roles with grants, for tests that connect as them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest_asyncio

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.support.readers import Reader, publish

Login = Callable[..., Awaitable[store.Database]]
"""Create a role with privileges on streams, and connect as it."""


def user(database: store.Database) -> str:
    """The role as which a database is open."""
    return str(urlsplit(database.dsn).username)


def as_role(dsn: str, role: str) -> str:
    """A URL with another user."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}"))


@pytest_asyncio.fixture
async def login(database: store.Database, declare: Callable[..., Awaitable[Reader]]) -> AsyncIterator[Login]:
    """Create a role, grant it privileges, and connect as it. There are the streams orders and secrets."""
    await declare()
    await store.create_stream(database, "secrets")
    await store.declare_consumer(database, ConsumerSpec(stream="secrets", name="spy"))
    await publish(database, "k1", "k2", stream="secrets")
    opened: list[store.Database] = []
    roles: list[str] = []

    async def login(*privileges: str, streams: tuple[str, ...] = ("orders",)) -> store.Database:
        role = f"app_{uuid4().hex[:12]}"
        await database.fetch(f"create role {role} login password 'secret'")
        roles.append(role)
        for privilege in privileges:
            await store.grant(database, privilege, role, streams)
        opened.append(store.Database(as_role(database.dsn, role)))
        await opened[-1].open()
        return opened[-1]

    yield login
    for one in opened:
        await one.close()
    for role in roles:
        await database.fetch(f"drop owned by {role}")
        await database.fetch(f"drop role {role}")
