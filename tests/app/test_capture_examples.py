"""The examples of docs/capture.md run as separate processes and handle the rows that are
written into a table."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.cli.processes import Commands, Running
from tests.support.captures import slots_dropped, until

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.asyncio


@pytest.fixture
def commands(tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    with Commands(tmp_path) as commands:
        yield commands


@asynccontextmanager
async def example(
    commands: Commands, dsn: str, name: str, tables: str
) -> AsyncIterator[tuple[Running, asyncpg.Connection]]:
    """Run the example on these tables, with a connection beside it. It must exit with success."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(tables)
        async with slots_dropped(dsn):
            running = commands("run", f"examples.{name}:app", directory=ROOT)
            try:
                yield running, connection
                running.send(signal.SIGTERM)
                assert running.end() == 0, running.lines
                assert not any("Traceback" in line for line in running.lines), running.lines
            finally:
                running.close()  # closed before its slot is dropped, because it would create another one
    finally:
        await connection.close()


async def test_orders_paid_before_and_after_the_start_are_shipped(commands: Commands, dsn: str) -> None:
    tables = """
        create table orders (id bigint primary key, status text not null, total numeric not null, email text);
        alter table orders replica identity full;
        insert into orders values (1, 'paid', 20.90, 'ann@example.com'), (2, 'new', 5, 'ben@example.com');
    """
    async with example(commands, dsn, "capture_orders", tables) as (running, connection):
        running.line("shipped order 1 for 20.90, after its read")
        await connection.execute("update orders set status = 'paid', email = 'ben@example.org' where id = 2")
        running.line("shipped order 2 for 5, after its update")
        assert not await connection.fetchval(
            """select count(*) from headrace_streams.orders where data::text like '%example.%'"""
        )
        assert (
            await connection.fetchval(
                """select data ->> 'changes' from headrace_streams.orders where data ->> 'action' = 'update'"""
            )
            == '{"status":"new"}'
        )


async def test_a_copy_follows_inserted_updated_and_deleted_rows(commands: Commands, dsn: str) -> None:
    tables = """
        create table products (id bigint primary key, title text not null, price numeric not null);
        create table catalogue (id bigint primary key, title text not null, price numeric not null);
        insert into products values (1, 'a hat', 20.90), (2, 'a coat', 80), (3, 'a scarf', 12.5);
    """
    same = """
        select not exists (select from products full join catalogue using (id, title, price) where products.id is null or catalogue.id is null)
           and exists (select from catalogue) and (select count(*) from products) = $1
    """
    async with example(commands, dsn, "capture_rows", tables) as (_, connection):
        await until(connection, same, 3)
        await connection.execute("""
            begin;
            update products set price = price + 1 where id = 1;
            delete from products where id = 2;
            update products set id = 4 where id = 3;
            insert into products values (5, 'a glove', 7);
            commit;
        """)
        await until(connection, same, 3)
