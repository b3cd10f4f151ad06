"""Captured tables that an app declares: the source is created at the first start, changed by the
next one, and captured while the app runs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import pytest_asyncio

from headrace import App, ConfigurationError, PostgresSpec, field, store, transform
from headrace.sources.postgres.capture.capturing import Capturing
from tests.support.captures import slots_dropped, until, until_state
from tests.support.logs import logged


@transform
def shouted(message: dict[str, Any]) -> dict[str, Any]:
    """A transform of the app."""
    message["record"]["item"] = message["record"]["item"].upper()
    return message


@pytest_asyncio.fixture
async def shop(database: store.Database, dsn: str) -> AsyncIterator[store.Database]:
    """A database with the tables `orders` and `items`."""
    for table in ("orders", "items"):
        await database.fetchval(f"create table {table} (id int primary key, item text)")
    async with slots_dropped(dsn):
        yield database


@pytest.mark.asyncio
async def test_rows_and_changes_reach_a_handler(shop: store.Database, dsn: str) -> None:
    app = App(dsn)
    seen: list[tuple[str, str]] = []
    done = anyio.Event()

    assert app.capture("public.orders", into="orders", transform=shouted) == "orders"

    @app.consumer("orders")
    async def ship(change: dict[str, Any]) -> None:
        seen.append((change["action"], change["record"]["item"]))
        if len(seen) == 3:
            done.set()

    await shop.fetchval("insert into orders values (1, 'nut')")
    with anyio.fail_after(60):
        async with app.running():
            await until(shop, "select state = 'done' from headrace_internal.backfills")
            await shop.fetchval("insert into orders values (2, 'bolt')")
            await shop.fetchval("update orders set item = 'screw' where id = 2")
            await done.wait()
    assert sorted(seen) == [("insert", "BOLT"), ("read", "NUT"), ("update", "SCREW")]


@pytest.mark.asyncio
async def test_an_app_that_only_captures_runs(shop: store.Database, dsn: str) -> None:
    app = App(dsn)
    app.capture("public.orders", into="orders", backfill=False)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: app.run(signals=False))
            await until(shop, "select exists (select from headrace_internal.sources)")
            await until_state(shop, "orders", "running")
            app.stop()


@pytest.mark.asyncio
async def test_a_source_is_made_and_changed_by_the_next_start(
    shop: store.Database, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    first = _idle(dsn)
    first.capture("public.orders", into="shop", columns={"public.orders": ["id"]})
    async with first.running():
        pass
    assert logged(caplog, "source created", source="shop", tables="public.orders", stream="shop")
    second = _idle(dsn)
    second.capture("public.orders", "public.items", into="shop", where=field("record.id") > 5, heartbeat="30s")
    caplog.clear()
    for expected in (True, False):
        async with second.running():
            pass
        changed = logged(
            caplog, "source setting changed", source="shop", setting="heartbeat", before="None", now="30.0"
        )
        assert bool(changed) == expected
        assert bool(logged(caplog, "source setting changed", setting="tables")) == expected
        caplog.clear()
    source = await store.source(shop, "shop")
    assert (source.settings["columns"], source.settings["where"]) == ({}, "data.record.id > 5")
    other = _idle(dsn)
    other.capture("public.orders", into="elsewhere", name="shop")
    with pytest.raises(ConfigurationError, match="with the stream 'shop', which can't be changed to 'elsewhere'"):
        async with other.running():
            pass


def _idle(dsn: str) -> App:
    """An app that does not capture. Other tests cover capturing."""
    app = App(dsn)
    app.attach(Capturing(()))
    return app


@pytest.mark.asyncio
async def test_rows_get_a_stream_of_their_kind_however_else_it_is_named(shop: store.Database, dsn: str) -> None:
    app = App(dsn, streams=["rows"])
    app.attach(Capturing(()))
    app.capture("public.orders", into="rows", mode="rows")

    @app.consumer("rows")
    async def ship(row: dict[str, Any]) -> None: ...

    async with app:
        assert (await app.admin.stream("rows")).one_message_per_key
    await app.preflight()
    plain = App(dsn)
    plain.stream("plain")
    async with plain:
        pass
    plain.capture("public.orders", into="plain", mode="rows")
    with pytest.raises(ConfigurationError, match="'plain' keeps every message"):
        async with plain:
            pass


def test_a_declaration_is_checked_at_once() -> None:
    app = App()
    app.capture("public.orders", into="orders")
    assert app.captures == [PostgresSpec(name="orders", stream="orders", tables=("public.orders",))]
    with pytest.raises(ConfigurationError, match=r"both called 'orders': pass name=…"):
        app.capture("public.items", into="orders")
    app.capture("public.items", into="orders", name="items", transform="shop.capture:slim")
    assert app.captures[1].transform == "shop.capture:slim"
    for wrong, reason in (
        ({"into": "x", "transform": lambda message: message}, "can't be imported by name"),
        ({"into": "x", "mode": "tables"}, "mode"),
        ({"into": "x", "rate": "fast"}, "rate"),
        ({"into": "x", "heartbeat": "often"}, "is not a duration"),
        ({"into": "x", "where": "data.record.id >"}, "where"),
        ({"into": "X"}, "source name"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            app.capture("public.orders", **wrong)  # type: ignore[arg-type]
    for tables in ((), ("orders",), (["public.orders"],)):
        with pytest.raises(ConfigurationError, match="table"):
            app.capture(*tables, into="x")  # type: ignore[arg-type]
    assert len(app.captures) == 2


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.app.capture.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[capture\]'"):
        App().capture("public.orders", into="orders")
