"""Partitions whose replica identity is another one than their root's. Theirs is what old rows have."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.connections import connected
from tests.sources.postgres.test_table_watch import QUICK

pytestmark = pytest.mark.asyncio

PARTS = """
    create table parts (id int primary key, code text not null, v text) partition by range (id);
    create table leaf partition of parts for values from (0) to (100);
    create unique index leaf_code on leaf (code); create unique index leaf_both on leaf (id, code)
"""
IDENTITIES = ("default", "full", "using index leaf_code", "using index leaf_both")


@pytest_asyncio.fixture
async def shop(dsn: str) -> Any:
    async with Shop.opened(dsn) as shop:
        await shop.sql.execute(PARTS)
        yield shop


async def failed(shop: Shop) -> list[Any]:
    source = await store.source(shop.database, "shop")
    return [one.data["record"] for one in await store.capture_failures(shop.database, source.id)]


@pytest.mark.parametrize("root", ["default", "full"])
@pytest.mark.parametrize("leaf", IDENTITIES)
async def test_old_rows_have_what_the_leaf_sends_and_no_null_that_is_none(shop: Shop, root: str, leaf: str) -> None:
    await shop.sql.execute(f"alter table parts replica identity {root}; alter table leaf replica identity {leaf}")
    await shop.source(tables=("public.parts",))
    async with shop.captured(QUICK):
        await shop.until_running()
        await shop.sql.execute("insert into parts values (1, 'a', 'v')")
        await shop.sql.execute("update parts set code = 'b'")
        await shop.sql.execute("update parts set id = 2")
        await shop.sql.execute("delete from parts")
        await shop.sql.execute("insert into parts values (9, 'end', null)")
        keyless = leaf == "using index leaf_code"
        found = await shop.until(4 if keyless else 5)
    known = {
        "default": ("id",),
        "full": ("id", "code", "v"),
        "using index leaf_code": ("code",),
        "using index leaf_both": ("id", "code"),
    }[leaf]
    changes = [one["changes"] for one in found if one["action"] == "update"]
    assert changes == [{"code": "a"} if "code" in known else None, {"id": 1} if "id" in known else None]
    assert await shop.keys() == [f"public.parts.{n}" for n in ((1, 1, 2, 9) if keyless else (1, 1, 2, 2, 9))]
    deleted = await failed(shop) if keyless else [one["record"] for one in found if one["action"] == "delete"]
    assert deleted == [{name: value for name, value in (("id", 2), ("code", "b"), ("v", "v")) if name in known}]


@pytest.mark.parametrize("root", ["default", "full"])
@pytest.mark.parametrize("leaf", IDENTITIES)
async def test_tombstones_have_the_right_key_or_become_failures(shop: Shop, root: str, leaf: str) -> None:
    await shop.sql.execute(f"alter table parts replica identity {root}; alter table leaf replica identity {leaf}")
    await shop.source(tables=("public.parts",), mode="rows", deletes="tombstone")
    async with shop.captured(QUICK):
        await shop.until_running()
        await shop.sql.execute("insert into parts values (1, 'a', 'v')")
        await shop.sql.execute("update parts set code = 'b'")
        await shop.sql.execute("delete from parts")
        await shop.sql.execute("insert into parts values (9, 'end', null)")
        await shop.until(2)
    rows = {key: one["record"] for key, one in (await shop.rows()).items()}
    assert set(rows) == {"public.parts.1", "public.parts.9"}
    if leaf == "using index leaf_code":
        assert rows["public.parts.1"] == {"id": 1, "code": "b", "v": "v"}
        assert await failed(shop) == [{"code": "b"}]
    else:
        assert rows["public.parts.1"] is None
        assert await failed(shop) == []


async def test_the_catalog_lists_identities_of_leaves_that_are_neither_full_nor_that_of_the_root(
    empty_dsn: str,
) -> None:
    async def identities(connection: SourceConnection) -> dict[str, frozenset[str]]:
        return dict((await catalog.load_tables(connection, ["public.parts"]))["public.parts"].leaf_identities)

    async with connected(empty_dsn) as connection:
        await connection.query(PARTS + "; create table other partition of parts for values from (100) to (200)")
        assert await identities(connection) == {}
        await connection.query("alter table leaf replica identity using index leaf_code")
        assert await identities(connection) == {"public.leaf": {"code"}}
        await connection.query("alter table parts replica identity full")
        assert await identities(connection) == {"public.leaf": {"code"}, "public.other": {"id"}}
        await connection.query("alter table leaf replica identity full; alter table other replica identity nothing")
        assert await identities(connection) == {"public.other": frozenset()}
