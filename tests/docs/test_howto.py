"""The code of the how-to guides works: declarations are accepted, and SQL does what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from headrace import AesGcm, App
from tests.docs.tutorial import blocks
from tests.drivers.test_drivers import url

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = sorted(page.name for page in GUIDES.glob("*.md"))


class Base(DeclarativeBase):
    """The tables of the examples."""


class Order(Base):
    """The type that the guides call an order."""

    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)


def namespaces(name: str) -> list[dict[str, Any]]:
    """Run the `python` blocks of a guide one after the other. Returns the names after each."""
    names: dict[str, Any] = {"Order": Order, "Busy": type("Busy", (Exception,), {})}
    found = []
    for block in blocks(GUIDES / name):
        if block.language == "python":
            exec(compile(_whole(block.text), name, "exec"), names)
            found.append(dict(names))
    return found


def _whole(text: str) -> str:
    """Put a block that awaits outside of a function into one."""
    if text.startswith("await "):
        return "async def example(order):\n" + re.sub(r"^", "    ", text, flags=re.MULTILINE)
    return text


def statements(name: str, *, starting: str) -> str:
    return next(b.text for b in blocks(GUIDES / name) if b.language == "sql" and b.text.startswith(starting))


@pytest.mark.parametrize("name", PAGES)
def test_its_declarations_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PATIENTS_KEY", "PATIENTS_KEY_2"):
        monkeypatch.setenv(variable, AesGcm.new_key())
    for names in namespaces(name):
        assert isinstance(names.get("app", App()), App)


@pytest_asyncio.fixture
async def connection(dsn: str) -> Any:
    async with App(dsn, streams=["orders", "mails"]):
        connection = await asyncpg.connect(dsn)
        yield connection
        await connection.close()


async def published(connection: asyncpg.Connection, stream: str) -> list[tuple[str, str]]:
    found = await connection.fetch(f"select key, data::text from headrace_streams.{stream} order by seq")
    return [(row["key"], row["data"]) for row in found]


@pytest.mark.asyncio
async def test_an_order_and_its_message_commit_together(dsn: str, connection: asyncpg.Connection) -> None:
    asynchronous, synchronous, _ = namespaces("publish-in-your-transaction.md")
    engine = create_async_engine(url(dsn, "asyncpg"))
    async with engine.begin() as begun:
        await begun.run_sync(Base.metadata.create_all)
    async with App(dsn) as app:
        asynchronous["take"].__globals__["app"] = app
        await asynchronous["take"](Order(id=1), async_sessionmaker(engine))
    await engine.dispose()
    blocking = sqlalchemy.create_engine(url(dsn, "psycopg"))
    synchronous["take"](Order(id=2), sessionmaker(blocking))
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        synchronous["take"](Order(id=2), sessionmaker(blocking))
    blocking.dispose()
    assert [key for key, _ in await published(connection, "orders")] == ["orders.1", "orders.2"]


@pytest.mark.asyncio
async def test_jobs_of_procrastinate_move_at_once(connection: asyncpg.Connection) -> None:
    await connection.execute("""
        create table procrastinate_jobs
            (id bigint, queue_name text, lock text, args jsonb, status text, scheduled_at timestamptz);
        insert into procrastinate_jobs values
            (1, 'mails', null, '{"to": "ann"}', 'todo', null), (2, 'mails', 'ben', '{"to": "ben"}', 'todo', null),
            (3, 'mails', null, '{"to": "cid"}', 'succeeded', null),
            (4, 'mails', null, '{}', 'todo', now() + interval '1 day');
    """)
    await connection.execute(statements("from-procrastinate.md", starting="begin"))
    assert await published(connection, "mails") == [("mails.1", '{"to": "ann"}'), ("mails.ben", '{"to": "ben"}')]
    assert await connection.fetchval("select scheduled from headrace.streams where name = 'mails'") == 1
    assert await connection.fetchval("select count(*) from procrastinate_jobs where status = 'todo'") == 0


@pytest.mark.asyncio
async def test_messages_of_pgmq_move_at_once(connection: asyncpg.Connection) -> None:
    """In one statement: a purge would delete what was sent since it was read."""
    await connection.execute("""
        create schema pgmq;
        create table pgmq.q_orders (msg_id bigint, message jsonb);
        insert into pgmq.q_orders values (2, '{"customer": "ben"}'), (1, '{"customer": "ann"}');
    """)
    await connection.execute(statements("from-pgmq.md", starting="begin"))
    assert [key for key, _ in await published(connection, "orders")] == ["orders.ann", "orders.ben"]
    assert await connection.fetchval("select count(*) from pgmq.q_orders") == 0


@pytest.mark.asyncio
async def test_queries_of_the_guides_run(connection: asyncpg.Connection) -> None:
    for name in ("poison-messages.md", "monitor.md"):
        await connection.fetch(statements(name, starting="select"))
