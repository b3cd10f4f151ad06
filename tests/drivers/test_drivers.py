"""Publishing and acking on the user's own connections, with each supported driver on real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from headrace import App, ConfigurationError, InvalidData, InvalidKey, LeaseLost, Message, UnknownStream
from tests.runtime.running import Seen, consumer, running, seek

Open = Callable[[str], AbstractAsyncContextManager[Any]]


def url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, transaction.commit, transaction.rollback
    finally:
        await connection.close()


@asynccontextmanager
async def by_psycopg(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as connection:
        yield connection, connection.commit, connection.rollback


def by_session(driver: str) -> Open:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        engine = create_async_engine(url(dsn, driver))
        async with AsyncSession(engine) as session:
            yield session, session.commit, session.rollback
        await engine.dispose()

    return opened


def by_connection(driver: str) -> Open:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        engine = create_async_engine(url(dsn, driver))
        async with engine.connect() as connection:
            yield connection, connection.commit, connection.rollback
        await engine.dispose()

    return opened


DRIVERS: dict[str, Open] = {
    "asyncpg": by_asyncpg,
    "psycopg": by_psycopg,
    "session on asyncpg": by_session("asyncpg"),
    "session on psycopg": by_session("psycopg"),
    "connection on asyncpg": by_connection("asyncpg"),
    "connection on psycopg": by_connection("psycopg"),
}
each_driver = pytest.mark.parametrize("opened", DRIVERS.values(), ids=DRIVERS.keys())


async def write(connection: Any, number: int) -> None:
    if isinstance(connection, (AsyncSession, AsyncConnection)):
        await connection.execute(text("insert into effects values (:number)"), {"number": number})
    else:
        await connection.execute(f"insert into effects values ({number})")


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, streams=["orders"])
    async with app:
        await app.database.fetch("create table effects (id bigint)")
        yield app


async def effects(app: App) -> list[int]:
    return [row[0] for row in await app.database.fetch("select id from effects order by id")]


async def stored(app: App) -> list[tuple[str, str, str | None]]:
    rows = await app.database.fetch("select key, data::text, headers::text from headrace_streams.orders order by seq")
    return [tuple(row) for row in rows]


@pytest.mark.asyncio
@each_driver
async def test_messages_are_there_when_the_user_s_transaction_commits(app: App, dsn: str, opened: Open) -> None:
    async with opened(dsn) as (connection, commit, _):
        assert await app.publish("orders", "a", {"n": 1}, headers={"h": 1}, tx=connection) == 1
        assert await app.publish("orders", "b", "100 %", message_id="once", tx=connection) == 2
        assert await app.publish_many("orders", [("c", 3), ("d", None, {"h": 2})], tx=connection) == 2
        assert await app.publish("orders", "e", 5, delay="1h", tx=connection) is None
        await write(connection, 1)
        assert await stored(app) == []
        await commit()
    assert await stored(app) == [
        ("a", '{"n":1}', '{"h":1}'),
        ("b", '"100 %"', None),
        ("c", "3", None),
        ("d", "null", '{"h":2}'),
    ]
    assert await effects(app) == [1]
    assert await app.database.fetchval("select count(*) from headrace_internal.scheduled") == 1


@pytest.mark.asyncio
@each_driver
async def test_nothing_is_there_when_it_is_rolled_back(app: App, dsn: str, opened: Open) -> None:
    async with opened(dsn) as (connection, _, rollback):
        await app.publish("orders", "a", 1, tx=connection)
        await app.publish_many("orders", [("a", 1), ("b", 2)], tx=connection)
        await write(connection, 1)
        await rollback()
    assert await stored(app) == []
    assert await effects(app) == []


@pytest.mark.asyncio
@each_driver
@pytest.mark.parametrize(
    ("stream", "key", "data", "error", "said"),
    [
        ("oders", "a", 1, UnknownStream, "There is no stream 'oders': create it, or mend the name"),
        ("orders", "a..b", 1, InvalidKey, "The key 'a..b' has an empty token"),
        ("orders", "a", {"a": "\0"}, InvalidData, "NUL"),
    ],
)
async def test_errors_are_as_everywhere(
    app: App, dsn: str, opened: Open, stream: str, key: str, data: Any, error: type[Exception], said: str
) -> None:
    async with opened(dsn) as (connection, _, rollback):
        with pytest.raises(error) as caught:
            await app.publish(stream, key, data, tx=connection)
        assert str(caught.value).startswith(said) or said == "NUL"
        await rollback()


@pytest.mark.asyncio
@each_driver
async def test_many_messages_one_without_a_key_are_refused_as_everywhere(app: App, dsn: str, opened: Open) -> None:
    nothing: Any = None
    async with opened(dsn) as (connection, _, rollback):
        with pytest.raises(InvalidKey, match="not NoneType"):
            await app.publish_many("orders", [("a", 1), (nothing, 2)], tx=connection)
        await rollback()


@pytest.mark.asyncio
@each_driver
async def test_an_ack_commits_with_the_rest_or_not_at_all(app: App, dsn: str, opened: Open) -> None:
    attempts = Seen()

    @app.consumer("orders", backoff=0)
    async def ship(number: int, message: Message) -> None:
        attempts.note((number, message.attempt))
        async with opened(dsn) as (connection, commit, rollback):
            await write(connection, number * 10 + message.attempt)
            await message.ack(tx=connection)
            await (rollback() if message.attempt == 1 else commit())

    async with running(app):
        await app.publish_many("orders", [("k", 1), ("k", 2)])
        await app.idle()
    assert attempts.notes == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert await effects(app) == [12, 22]
    info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)


@pytest.mark.asyncio
@each_driver
async def test_an_ack_of_a_lost_lease_is_refused(app: App, dsn: str, opened: Open) -> None:
    said = Seen()

    @app.consumer("orders")
    async def ship(number: int, message: Message) -> None:
        if said.notes:
            return
        async with opened(dsn) as (connection, _, rollback):
            await write(connection, number)
            await seek(app, "ship", 0)
            with pytest.raises(LeaseLost) as caught:
                await message.ack(tx=connection)
            await rollback()
        said.note(str(caught.value))

    async with running(app):
        await app.publish("orders", "k", 1)
        [text] = await said.until(1)
        await app.idle()
    assert text.startswith("The lease of the message 1 was lost")
    assert await effects(app) == []


@asynccontextmanager
async def autocommit_asyncpg(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def autocommit_psycopg(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


def autocommit_sqlalchemy(driver: str) -> Open:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[Any]:
        engine = create_async_engine(url(dsn, driver), isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) as session:
            yield session
        await engine.dispose()

    return opened


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "opened",
    [autocommit_asyncpg, autocommit_psycopg, autocommit_sqlalchemy("asyncpg"), autocommit_sqlalchemy("psycopg")],
    ids=["asyncpg", "psycopg", "sqlalchemy on asyncpg", "sqlalchemy on psycopg"],
)
async def test_without_a_transaction_publishing_is_fine_and_acking_is_refused(app: App, dsn: str, opened: Open) -> None:
    said = Seen()

    @app.consumer("orders", max_deliver=1)
    async def ship(message: Message) -> None:
        async with opened(dsn) as connection:
            with pytest.raises(ConfigurationError) as caught:
                await message.ack(tx=connection)
            said.note(str(caught.value))

    async with running(app):
        async with opened(dsn) as connection:
            await app.publish("orders", "k", 1, tx=connection)
        assert len(await stored(app)) == 1
        [text] = await said.until(1)
        await app.idle()
    assert text.startswith("The connection is not inside a transaction")


@pytest.mark.asyncio
async def test_a_connection_with_a_json_codec_of_its_own_stores_what_was_said(app: App, dsn: str) -> None:
    import json

    async with by_asyncpg(dsn) as (connection, commit, _):
        await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await app.publish("orders", "a", {"n": 1}, headers={"h": 1}, tx=connection)
        await app.publish_many("orders", [("b", {"n": 2})], tx=connection)
        await commit()
    assert await stored(app) == [("a", '{"n":1}', '{"h":1}'), ("b", '{"n":2}', None)]


@pytest.mark.asyncio
async def test_a_connection_that_broke_is_the_database_s_absence(app: App, dsn: str) -> None:
    from headrace import StoreUnavailable

    for opened in (by_asyncpg, by_psycopg, by_session("asyncpg"), by_session("psycopg")):
        async with opened(dsn) as (connection, _, _rollback):
            await app.publish("orders", "a", 1, tx=connection)
            await app.database.fetch(
                """select pg_terminate_backend(pid) from pg_stat_activity
                   where datname = current_database() and state = 'idle in transaction'"""
            )
            with pytest.raises(StoreUnavailable):
                await app.publish("orders", "a", 1, tx=connection)


@pytest.mark.asyncio
async def test_an_object_that_is_not_a_connection_is_refused(app: App) -> None:
    for given in (object(), "postgresql://…", psycopg.Connection.__new__(psycopg.Connection)):
        with pytest.raises(ConfigurationError, match="is not supported for publishing or acking"):
            await app.publish("orders", "a", 1, tx=given)
