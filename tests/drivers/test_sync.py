"""Publishing and acking from synchronous code: psycopg, SQLAlchemy and Django."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
import pytest_asyncio
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from headrace import App, ConfigurationError, InvalidKey, Message, UnknownStream
from headrace.drivers import sync
from tests.drivers.test_drivers import effects, stored, url
from tests.runtime.running import Seen, consumer, running

Open = Callable[[str], AbstractContextManager[Any]]


@contextmanager
def by_psycopg(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        yield connection, connection.execute, connection.commit, connection.rollback


@contextmanager
def by_session(dsn: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url(dsn, "psycopg"))
    with Session(engine) as session:
        yield session, lambda query: session.execute(sqlalchemy.text(query)), session.commit, session.rollback
    engine.dispose()


@contextmanager
def by_connection(dsn: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url(dsn, "psycopg"))
    with engine.connect() as connection:
        yield (
            connection,
            lambda query: connection.execute(sqlalchemy.text(query)),
            connection.commit,
            connection.rollback,
        )
    engine.dispose()


@contextmanager
def by_django(dsn: str) -> Iterator[Any]:
    """Django's own connection inside `transaction.atomic()`, rolled back by an exception, as in applications."""
    wrapper = django_connection(dsn)
    from django.db import transaction

    class Rollback(Exception):
        pass

    def execute(query: str) -> None:
        with wrapper.cursor() as cursor:
            cursor.execute(query)

    def roll_back() -> None:
        raise Rollback

    try:
        with transaction.atomic(using=wrapper.alias):
            yield wrapper, execute, lambda: None, roll_back
    except Rollback:
        pass
    finally:
        wrapper.close()


def django_connection(dsn: str) -> Any:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}})
        django.setup()
    from django.db import connections

    wrapper = connections.create_connection("default")
    given = conninfo_to_dict(dsn)
    wrapper.settings_dict = {
        **wrapper.settings_dict,
        "NAME": given["dbname"], "USER": given["user"], "HOST": given["host"], "PORT": given["port"],
    }  # fmt: skip
    connections["default"] = wrapper
    return wrapper


OPENED: dict[str, Open] = {
    "psycopg": by_psycopg,
    "session": by_session,
    "connection": by_connection,
    "django": by_django,
}
each_driver = pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED.keys())


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, streams=["orders"])
    async with app:
        await app.database.fetch("create table effects (id bigint)")
        yield app


@pytest.mark.asyncio
@each_driver
async def test_messages_are_there_when_the_transaction_commits(app: App, dsn: str, opened: Open) -> None:
    def work() -> None:
        with opened(dsn) as (connection, execute, commit, _):
            assert sync.publish(connection, "orders", "a", {"n": 1}, headers={"h": 1}) == 1
            assert sync.publish(connection, "orders", "b", "100 %", message_id="x") == 2
            assert sync.publish_many(connection, "orders", [("c", 3), ("d", None, {"h": 2})]) == 2
            assert sync.publish(connection, "orders", "e", 5, delay="1h") is None
            assert sync.publish(connection, "orders", "d", 6, unique_key="u", delay="1h") is None
            assert sync.publish_many(connection, "orders", [("d", 7), ("d", 8)], unique_keys=["u", "u"]) == 0
            execute("insert into effects values (1)")
            commit()

    await in_thread(work)
    assert [key for key, _, _ in await stored(app)] == ["a", "b", "c", "d"]
    assert (await stored(app))[:2] == [("a", '{"n":1}', '{"h":1}'), ("b", '"100 %"', None)]
    assert await effects(app) == [1]


@pytest.mark.asyncio
@each_driver
async def test_nothing_is_there_when_it_is_rolled_back(app: App, dsn: str, opened: Open) -> None:
    def work() -> None:
        with opened(dsn) as (connection, execute, _, rollback):
            sync.publish(connection, "orders", "a", 1)
            execute("insert into effects values (1)")
            rollback()

    await in_thread(work)
    assert await stored(app) == []
    assert await effects(app) == []


@pytest.mark.asyncio
@each_driver
async def test_a_plain_function_acks_in_its_own_transaction(app: App, dsn: str, opened: Open) -> None:
    attempts = Seen()

    @app.consumer("orders", backoff=0)
    def ship(number: int, message: Message) -> None:
        attempts.notes.append(message.attempt)
        with opened(dsn) as (connection, execute, commit, rollback):
            execute(f"insert into effects values ({message.attempt})")
            sync.ack(connection, message)
            rollback() if message.attempt == 1 else commit()

    async with running(app):
        await app.publish("orders", "k", 1)
        await app.idle()
    assert attempts.notes == [1, 2]
    assert await effects(app) == [2]
    info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)


@pytest.mark.asyncio
@each_driver
async def test_errors_are_ours(app: App, dsn: str, opened: Open) -> None:
    def work() -> None:
        with opened(dsn) as (connection, _, _commit, rollback):
            with pytest.raises(InvalidKey, match="has an empty token"):
                sync.publish(connection, "orders", "a..b", 1)
            with pytest.raises(UnknownStream, match="There is no stream 'oders'"):
                sync.publish(connection, "oders", "a", 1)
            rollback()

    await in_thread(work)


@pytest.mark.asyncio
async def test_an_ack_outside_of_a_transaction_is_refused(app: App, dsn: str) -> None:
    said = Seen()

    @app.consumer("orders", max_deliver=1)
    def ship(message: Message) -> None:
        wrapper = django_connection(dsn)
        try:
            with pytest.raises(ConfigurationError) as caught:
                sync.ack(wrapper, message)
        finally:
            wrapper.close()
        said.notes.append(str(caught.value))

    async with running(app):
        await app.publish("orders", "k", 1)
        await app.idle()
    assert said.notes[0].startswith("The connection is not inside a transaction")


def test_an_object_that_is_not_a_synchronous_connection_is_refused() -> None:
    for given in (object(), psycopg.AsyncConnection.__new__(psycopg.AsyncConnection)):
        with pytest.raises(ConfigurationError, match=r"headrace\.drivers\.sync does not support a"):
            sync.publish(given, "orders", "a", 1)


async def in_thread(work: Callable[[], None]) -> None:
    import anyio.to_thread

    await anyio.to_thread.run_sync(work)
