"""Columns that a source's settings name and its tables don't have are refused, or reported if they go later."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import App
from headrace.admin import Admin, configuration
from headrace.flow.observed import source_reason, source_state
from headrace.model.errors import ConfigurationError
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop

pytestmark = pytest.mark.asyncio

SOON = CaptureLimits(table_check_interval=0.05, stopped_retry_delay=0.1, sources_interval=0.05)
NOWHERE = "postgresql://shop:hush@127.0.0.1:1/shop"

MISSING: list[tuple[dict[str, Any], str]] = [
    ({"group": ("regio",)}, "group"),
    ({"sort": "updated_at", "mode": "rows"}, "sort"),
    ({"key": "orders.{record.regio}.{record.id}"}, "key"),
    ({"columns": {"public.orders": ("id", "statsu")}}, "columns"),
    ({"where": "data.record.statsu = 'paid'"}, "where"),
]


def spec(**settings: Any) -> PostgresSpec:
    return PostgresSpec(**{"name": "shop", "stream": "shop", "tables": ("public.orders",), **settings})


async def _created(shop: Shop, wanted: PostgresSpec) -> None:
    await Admin(shop.database).create_source(wanted)


async def _edited(shop: Shop, wanted: PostgresSpec) -> None:
    admin = Admin(shop.database)
    await admin.create_source(spec(mode=wanted.mode))
    try:
        await admin.edit_source(
            "shop", **{name: value for name, value in wanted.given().items() if name not in ("tables", "mode")}
        )
    finally:
        assert (await admin.source("shop")).settings == spec(mode=wanted.mode).settings(), "nothing was changed"
        await admin.delete_source("shop")


async def _declared(shop: Shop, wanted: PostgresSpec) -> None:
    app = App(shop.dsn)
    app.capture(
        "public.orders", into="shop", **{name: value for name, value in wanted.given().items() if name != "tables"}
    )
    async with app.running():
        pass


async def _planned(shop: Shop, wanted: PostgresSpec) -> None:
    stream = "streams: {shop: {one_message_per_key: true}}\n" if wanted.mode == "rows" else ""
    settings = {"kind": "postgres", "stream": "shop", **wanted.given()}
    text = stream + f"sources: {{shop: {json.dumps(settings)}}}"
    documents = configuration.read_documents(text, "headrace.yaml", {}, configuration.Problems())
    await configuration.plan(shop.database, configuration.declared(documents))


@pytest.mark.parametrize("way", [_created, _edited, _declared, _planned])
@pytest.mark.parametrize(("settings", "field"), MISSING, ids=[field for _, field in MISSING])
async def test_a_column_that_does_not_exist_is_refused_in_each_way(
    shop: Shop, settings: dict[str, Any], field: str, way: Callable[[Shop, PostgresSpec], Awaitable[None]]
) -> None:
    with pytest.raises((ConfigurationError, ExceptionGroup)) as refused:
        await way(shop, spec(**settings))
    error = refused.value if isinstance(refused.value, ConfigurationError) else refused.value.exceptions[0]
    assert f"The setting {field} names the column" in str(error)
    assert "which public.orders does not have" in str(error)
    assert await Admin(shop.database).sources() == []


async def test_a_table_that_is_not_there_yet_and_a_database_that_does_not_answer_refuse_nothing(shop: Shop) -> None:
    admin = Admin(shop.database)
    await admin.create_source(spec(name="later", stream="later", tables=("public.later",), group=("region",)))
    await admin.create_source(spec(name="away", stream="away", database=NOWHERE, group=("region",)))
    [later, away] = sorted([one.name for one in await admin.sources()], reverse=True)
    assert (later, away) == ("later", "away")


async def test_a_condition_may_be_on_a_column_that_only_one_of_its_tables_has(shop: Shop) -> None:
    await shop.sql.execute("create table items (id int primary key, price int)")
    admin = Admin(shop.database)
    await admin.create_source(spec(tables=("public.orders", "public.items"), where="data.record.price > 1"))
    with pytest.raises(ConfigurationError, match="The setting where names the column 'prize'") as refused:
        await admin.edit_source("shop", where="data.record.prize > 1")
    assert refused.value.field == "where"
    with pytest.raises(ConfigurationError, match=r"'price', which public\.orders does not have"):
        await admin.edit_source("shop", where=None, group=("price",))


async def test_a_source_that_lacks_a_column_since_it_was_declared_does_not_keep_its_app_from_starting(
    shop: Shop,
) -> None:
    for _ in range(2):
        app = App(shop.dsn)
        app.capture("public.orders", into="shop", group=("status",))
        async with app.running():
            pass
        await shop.sql.execute("alter table orders drop column if exists status")
    [source] = await Admin(shop.database).sources()
    assert source.settings["group"] == ["status"]


async def test_a_column_that_is_dropped_later_is_noted_and_its_failures_need_attention(shop: Shop) -> None:
    await shop.sql.execute("alter table orders replica identity full")
    await shop.source(group=("status",))
    async with shop.captured(SOON):
        await shop.until_running()
        await shop.sql.execute("alter table orders drop column status")
        await shop.sql.execute("insert into orders values (1, 5)")

        async def degraded() -> SourceInfo | None:
            found = await Admin(shop.database).source("shop")
            capture = found.capture
            return found if capture is not None and capture.reason is not None and capture.failures == 1 else None

        found: SourceInfo = await eventually(degraded)
        assert found.capture is not None
        assert source_state(found.capture) == "degraded"
        assert "The setting group names the column 'status', which public.orders does not have." in str(
            found.capture.reason
        )
        await Admin(shop.database).edit_source("shop", group=("id",))
        await shop.sql.execute("insert into orders values (2, 5)")

        async def only_failures() -> SourceInfo | None:
            found = await Admin(shop.database).source("shop")
            return (
                found
                if found.capture is not None and found.capture.state == "running" and found.capture.reason is None
                else None
            )

        found = await eventually(only_failures)
    assert source_state(found.capture) == "degraded"
    assert source_reason("shop", found.capture) == (
        "1 change could not become messages.", "headrace source postgres failures ls shop"
    )  # fmt: skip
    await Admin(shop.database).drop_failures("shop")
    found = await Admin(shop.database).source("shop")
    assert found.capture is not None
    assert found.capture.failures == 0
