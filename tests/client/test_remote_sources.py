"""Sources are administered over a server as in a database, including their captures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from headrace import PostgresSpec, store
from headrace.admin import Admin
from headrace.client import Remote
from headrace.model.conditions import field
from headrace.model.errors import HeadraceError
from headrace.model.sources import SlotRemains, SourceExists
from headrace.server.options import Options
from headrace.sources.webhook import WebhookSpec
from headrace.store import CaptureBatch, CaptureFailure
from tests.support.capturers import begun
from tests.support.serving import serving

pytestmark = pytest.mark.asyncio

NOWHERE = "postgresql://shop:hush@127.0.0.1:1/shop"
ORDERS = PostgresSpec(
    name="orders", stream="orders", tables=("public.orders", "public.items"), database=NOWHERE, where=field("record.id") > 5,
    columns={"public.items": ("id",)}, group=("id",), heartbeat=30.0, rate=7,
)  # fmt: skip


@pytest_asyncio.fixture
async def admin(database: store.Database) -> Admin:
    """The database's own administration."""
    return Admin(database)


@pytest_asyncio.fixture
async def remote(dsn: str, admin: Admin) -> AsyncIterator[Remote]:
    """The administration of the same database over HTTP."""
    with serving(dsn, Options(capture=False, push_allow=("loopback",))) as url:
        async with Remote(url) as remote:
            yield remote


async def test_changes_over_the_server_are_changes_of_the_database(
    admin: Admin, remote: Remote, database: store.Database
) -> None:
    assert await remote.create_source(ORDERS)
    assert not await admin.create_source(ORDERS)
    assert not await remote.create_source(ORDERS)
    changes: list[dict[str, Any]] = [
        {"where": field("record.id") > 9, "rate": None},
        {"where": None, "heartbeat": 60.0, "tables": ["public.orders"]},
        {"database": None, "backfill": False, "columns": {}, "group": None},
    ]
    for change in changes:
        settings = (await remote.edit_source("orders", **change)).settings
        assert settings == (await admin.edit_source("orders", **change)).settings
    assert await remote.delete_source("orders") is None
    assert await admin.sources() == []


async def test_both_return_the_same(admin: Admin, remote: Remote, database: store.Database) -> None:
    await admin.create_source(ORDERS)
    number, epoch = await begun(database, "orders")
    failures = [CaptureFailure(key="k", data='{"n": 1.5}', error="no") for _ in range(3)]
    await store.append_captured(database, number, epoch, "orders", CaptureBatch(failures=failures))
    await remote.pause_source("orders")
    await remote.start_backfill("orders", ["public.orders"], rate=5)
    await remote.verify_source("orders", repair=True)
    operations: list[Callable[[Any], Any]] = [
        lambda side: side.sources(),
        lambda side: side.source("orders"),
        lambda side: side.backfills(),
        lambda side: side.backfills("orders"),
        lambda side: side.failures("orders"),
        lambda side: side.failures("orders", above=1, limit=1),
        lambda side: side.retry_failures("orders", []),
        lambda side: side.check_source("orders"),
        lambda side: side.check_spec(ORDERS),
        lambda side: side.pause_source("orders"),
    ]
    for operation in operations:
        assert await operation(remote) == await operation(admin)
    assert (await remote.resume_source("orders", anew=True)).capture is not None
    assert len(await admin.backfills()) == 5


async def test_both_refuse_the_same(admin: Admin, remote: Remote) -> None:
    await admin.create_source(ORDERS)
    await admin.pause_source("orders")
    await admin.create_source(WebhookSpec(name="hook", stream="orders"))
    await admin.start_backfill("orders", ["public.items"])
    operations: list[tuple[type[HeadraceError], Callable[[Any], Any]]] = [
        (SourceExists, lambda side: side.create_source(WebhookSpec(name="orders", stream="orders"))),
        (SlotRemains, lambda side: side.delete_source("orders")),
        (HeadraceError, lambda side: side.pause_source("hook")),
        (HeadraceError, lambda side: side.edit_source("orders", mode="rows")),
        (HeadraceError, lambda side: side.start_backfill("orders", ["public.items"])),
        (HeadraceError, lambda side: side.delete_stream("orders", force=True)),
    ]
    for kind, operation in operations:
        errors = []
        for side in (remote, admin):
            with pytest.raises(kind) as refused:
                await operation(side)
            errors.append((type(refused.value).__name__, str(refused.value)))
        assert errors[0] == errors[1]
    left = await remote.delete_source("orders", force=True)
    assert left is not None
    assert "pg_drop_replication_slot" in left


async def test_secrets_are_rotated_over_the_server_as_in_the_database(
    admin: Admin, remote: Remote, database: store.Database
) -> None:
    await admin.create_stream("orders")
    for number, operator in enumerate((admin, remote)):
        name = f"hook-{number}"
        await operator.create_source(WebhookSpec(name=name, stream="orders", signature="github", secrets=("old",)))
        for change, stored in ((("new", "…"), ["new", "old"]), (("…",), ["new", "old"]), (("new",), ["new"])):
            shown = await operator.edit_source(name, secrets=change)
            assert shown.settings["secrets"] == ["…"] * len(stored)
            assert (await store.source_with_secrets(database, name)).settings["secrets"] == stored
        with pytest.raises(HeadraceError, match="2 times"):
            await operator.edit_source(name, secrets=("…", "…"))
    for operator in (admin, remote):
        await operator.create_source(ORDERS)
        await operator.edit_source("orders", database=NOWHERE.replace("hush", "quiet"))
        assert "quiet" in (await store.source_with_secrets(database, "orders")).settings["database"]
        await operator.edit_source("orders", database=NOWHERE)
