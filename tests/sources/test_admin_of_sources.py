"""Administration of sources on real Postgres: create, list, edit and delete."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import pytest_asyncio

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import ConfigurationError, InUse, InvalidInput, UnknownSource, UnknownStream
from headrace.sources.webhook import WebhookSpec
from tests.conftest import Connect
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

GITHUB = WebhookSpec(
    name="github", stream="orders", key="github.{header.x-github-event}", signature="github", secrets=("one", "two"),
    keep_headers=("x-github-event",), max_body=1000,
)  # fmt: skip


@pytest_asyncio.fixture
async def admin(database: store.Database) -> Admin:
    """The administration of a database with the stream `orders`."""
    admin = Admin(database)
    await admin.create_stream("orders")
    return admin


async def test_a_source_is_found_by_its_name_and_by_its_id(admin: Admin) -> None:
    assert await admin.create_source(GITHUB)
    await admin.create_source(WebhookSpec(name="any", stream="orders"))
    source = await admin.source("github")
    assert await admin.source(source.id) == source
    assert [one.name for one in await admin.sources()] == ["any", "github"]
    stream = await admin.stream("orders")
    assert (source.kind, source.stream, source.stream_id) == ("webhook", "orders", stream.id)
    assert (source.settings["key"], source.settings["max_body"]) == (GITHUB.key, 1000)
    for ref in ("nope", "", "a\0b", "ü" * 1000):
        with pytest.raises(UnknownSource, match="does not exist"):
            await admin.source(ref)


async def test_a_name_that_looks_like_an_id_is_refused_and_an_id_comes_first(
    admin: Admin, database: store.Database
) -> None:
    await admin.create_source(GITHUB)
    twin = (await admin.source("github")).id
    with pytest.raises(InvalidInput, match="looks like an id"):
        await admin.create_source(WebhookSpec(name=twin, stream="orders"))
    await admin.create_source(WebhookSpec(name="twin", stream="orders"))
    await database.fetchval("update headrace_internal.sources set name = $1 where name = 'twin'", twin)
    assert (await admin.source(twin)).name == "github"
    with pytest.raises(InvalidInput, match="can't be used"):
        await store.create_source(database, "No!", "webhook", "orders", {})


async def test_only_the_check_of_signatures_reads_secrets(admin: Admin, database: store.Database) -> None:
    await admin.create_source(GITHUB)
    infos = [await admin.source("github"), *await admin.sources(), await admin.edit_source("github", max_body=5)]
    for source in infos:
        assert source.settings["secrets"] == ["…", "…"]
    assert "one" not in repr(GITHUB)
    stored = await store.source_with_secrets(database, "github")
    spec = WebhookSpec.stored(stored.name, stored.stream, stored.settings)
    assert spec == msgspec.structs.replace(GITHUB, max_body=5)


async def test_creating_a_source_again_is_fine_as_long_as_it_is_the_same(admin: Admin) -> None:
    await admin.create_stream("parcels")
    assert await admin.create_source(GITHUB)
    assert not await admin.create_source(GITHUB)
    for change in ({"stream": "parcels"}, {"key": "{name}"}, {"secrets": ("one", "three")}, {"max_body": None}):
        with pytest.raises(InvalidInput, match=next(iter(change))) as refused:
            await admin.create_source(msgspec.structs.replace(GITHUB, **change))
        assert "three" not in str(refused.value)
        assert "'one'" not in str(refused.value)
    assert (await admin.source("github")).stream == "orders"


async def test_a_source_needs_a_stream_that_is_there(admin: Admin) -> None:
    with pytest.raises(UnknownStream, match="create it"):
        await admin.create_source(WebhookSpec(name="github", stream="parcels"))
    assert await admin.sources() == []


async def test_an_edit_changes_what_is_given_and_checks_the_whole(admin: Admin) -> None:
    await admin.create_source(GITHUB)
    before = await admin.source("github")
    changed = await admin.edit_source(before.id, secrets=["two", "three", "four"], keep_headers=[])
    assert len(changed.settings["secrets"]) == 3
    assert (changed.settings["key"], changed.settings["keep_headers"]) == (GITHUB.key, [])
    assert changed.updated_at > before.updated_at
    assert changed.id == before.id
    with pytest.raises(ConfigurationError, match="secret"):
        await admin.edit_source("github", signature=None)
    with pytest.raises(ConfigurationError, match="template"):
        await admin.edit_source("github", key="{nope}")
    with pytest.raises(InvalidInput, match=r"max_body|int"):
        await admin.edit_source("github", max_body="much")
    with pytest.raises(InvalidInput, match="stream"):
        await admin.edit_source("github", stream="parcels")
    with pytest.raises(UnknownSource):
        await admin.edit_source("nope", key="{name}")
    assert await admin.source("github") == changed


async def test_a_removed_source_is_gone_and_its_name_free(admin: Admin) -> None:
    await admin.create_source(GITHUB)
    await admin.delete_source("github")
    assert await admin.sources() == []
    with pytest.raises(UnknownSource):
        await admin.delete_source("github")
    assert await admin.create_source(GITHUB)


async def test_a_stream_with_a_source_is_deleted_by_force_only(admin: Admin) -> None:
    await admin.create_source(GITHUB)
    with pytest.raises(InUse, match="'github'"):
        await admin.delete_stream("orders")
    await admin.delete_stream("orders", force=True)
    assert await admin.sources() == []


async def test_a_source_that_is_created_while_its_stream_is_deleted_waits_and_is_refused(
    admin: Admin, database: store.Database, connect: Connect
) -> None:
    deleting = await connect()
    async with deleting.transaction():
        await deleting.execute("select headrace_internal.delete_stream('orders', false)")
        creating = await start(admin.create_source(GITHUB))
        await until_blocked(database, deleting)
    with pytest.raises(UnknownStream):
        await creating
    assert await admin.sources() == []


async def test_one_of_two_concurrent_creations_of_a_source_is_the_first(admin: Admin) -> None:
    found = await asyncio.gather(*(admin.create_source(GITHUB) for _ in range(8)))
    assert sorted(found) == [False] * 7 + [True]
