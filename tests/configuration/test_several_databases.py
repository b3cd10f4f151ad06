"""A configuration of several databases: each object is planned and applied in its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from headrace import store
from headrace.admin import Admin, configuration
from headrace.admin.configuration import applying
from headrace.admin.configuration.objects import databases
from headrace.admin.configuration.parts import Part
from headrace.model.errors import ConfigurationError, InUse, StoreUnavailable
from headrace.model.watching.audit import Actor
from tests.support import servers

pytestmark = pytest.mark.asyncio

SHOP = """
name: shop
databases:
  eu: {url_from: "env:HR_TEST_EU"}
streams:
  orders: {consumers: {ship: {filter: orders.>}}}
  visits: {database: eu, retain_up_to: 30d, consumers: {count: }}
sources:
  shop: {kind: webhook, stream: visits}
tokens:
  all: {scopes: [admin]}
"""


@pytest_asyncio.fixture
async def eu(eu_dsn: str) -> AsyncIterator[store.Database]:
    async with servers.opened(eu_dsn) as found:
        yield found


def declared(text: str) -> configuration.Declared:
    return configuration.declared(configuration.read_documents(text, "a", {}, configuration.Problems()))


async def _names(database: store.Database) -> list[str]:
    return [one.name for one in await store.streams(database)]


async def _planned(database: store.Database, text: str, **options: bool) -> list[tuple[str, str, str | None]]:
    found = await configuration.plan(database, declared(text), **options)
    return [(one.action, "/".join(one.object), one.database) for one in found.changes]


async def test_each_object_is_applied_in_its_database(database: store.Database, eu: store.Database) -> None:
    assert await _planned(database, SHOP) == [
        ("create", "eu", None), ("create", "orders", None), ("create", "orders/ship", None), ("create", "all", None),
        ("create", "visits", "eu"), ("create", "shop", "eu"), ("create", "visits/count", "eu"),
    ]  # fmt: skip
    await configuration.apply(database, declared(SHOP))
    assert (await _names(database), await _names(eu)) == (["orders"], ["visits"])
    assert [one.name for one in await Admin(eu).sources()] == ["shop"]
    visits = await store.stream(eu, "visits")
    assert await store.place_of(database, "stream", visits.id) == store.Place("visits", "eu")
    assert await _planned(database, SHOP, prune=True) == []
    # Settings that a file doesn't mention stay as they are, also where a stream is.
    silent = SHOP.replace("database: eu, ", "").replace("30d", "7d")
    assert await _planned(database, silent) == [("change", "visits", "eu")]


async def test_what_no_longer_stands_in_the_file_is_deleted_where_it_is(
    database: store.Database, eu: store.Database
) -> None:
    await configuration.apply(database, declared(SHOP))
    less = "name: shop\nstreams: {orders: {consumers: {ship: }}}\ntokens: {all: {scopes: [admin]}}"
    left = (await configuration.plan(database, declared(less))).left
    assert {(one.kind, one.database) for one in left} == {("source", "eu"), ("consumer", "eu"), ("stream", "eu")}
    await configuration.apply(database, declared(less), prune=True, allow_delete=True)
    assert (await _names(database), await _names(eu)) == (["orders"], [])
    assert await store.places_of(database, "stream", ["visits"]) == []
    assert [one.name for one in await store.databases(database)] == ["eu"]


async def test_a_failure_before_the_first_commit_undoes_everything_everywhere(
    database: store.Database, eu: store.Database
) -> None:
    def fail(_: object) -> None:
        raise StoreUnavailable("no space left")

    with pytest.raises(StoreUnavailable, match=r"^no space"):
        await configuration.apply(database, declared(SHOP), save_tokens=fail)
    assert (await _names(database), await _names(eu), await store.databases(database)) == ([], [], [])


async def test_an_apply_that_ends_between_two_commits_is_finished_by_the_next(
    database: store.Database, eu: store.Database, eu_dsn: str
) -> None:
    shown: list[Any] = []

    def killed(tokens: Sequence[Any]) -> None:
        shown.extend(tokens)
        with psycopg.connect(eu_dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            )

    with pytest.raises(
        applying.PartlyApplied, match=r"applied in the configuration database.*not in the database 'eu'"
    ):
        await configuration.apply(database, declared(SHOP), committed=killed)
    assert [one.name for one in shown] == ["all"]
    assert await store.places_of(database, "stream", ["visits"]) == [store.Place("visits", "eu")]
    await configuration.apply(database, declared(SHOP))
    assert (await _names(database), await _names(eu)) == (["orders"], ["visits"])


async def test_the_lock_holds_until_the_last_deletion(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configuration.apply(database, declared("name: a\nstreams: {one: , two: }"))
    refused = []

    async def meanwhile(home: store.Database, one: store.Managed, _: Actor) -> None:
        with pytest.raises(InUse, match="Another `headrace apply`"):
            await configuration.apply(home, declared("streams: {three: }"))
        refused.append(one.object[0])

    monkeypatch.setattr(applying.removal, "delete", meanwhile)
    await configuration.apply(database, declared("name: a"), prune=True)
    assert refused == ["one", "two"]


async def test_nothing_is_deleted_once_the_lock_is_lost(
    database: store.Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configuration.apply(database, declared("name: a\nstreams: {one: }"))

    def lost(_: object) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'"
                " and database = (select oid from pg_database where datname = current_database())"
            )

    with pytest.raises(StoreUnavailable):
        await configuration.apply(database, declared("name: a"), prune=True, committed=lost)
    assert await _names(database) == ["one"]


async def _place(database: store.Database) -> None:
    """Place names in `eu`, as a server does."""
    await Admin(database).add_database("eu", "env:HR_TEST_EU")
    await store.place_name(database, "stream", "visits", "eu")
    await store.place_name(database, "source", "shop", "eu")
    await store.create_stream(database, "orders")


async def test_what_cannot_be_where_the_file_wants_it_is_said_with_its_place(
    database: store.Database, eu: store.Database
) -> None:
    await _place(database)
    for text, expected in (
        ("streams: {orders: {database: eu}}", r"1:11: .*'orders' lives in the configuration database, and can't be moved"),
        ("streams: {visits: {database: null}}", r"1:11: .*'visits' lives in the database 'eu'"),
        ("streams: {new: {database: us}}", r"1:11: The database 'us' of the stream 'new' is unknown"),
        ("sources: {shop: {kind: webhook, stream: orders}}", r"1:11: The source 'shop' lives in the database 'eu'"),
        ("grants: {r: {publish: [visits]}}", r"1:23: The stream 'visits' belongs to the database 'eu'"),
        ("databases: {eu: {url_from: 'postgresql://u:secret@h/d'}}", r"1:28: `url_from` of the database 'eu' must be env:NAME"),
        ("databases: {EU: {url_from: 'env:A'}}", r"1:13: The name 'EU' can't be used"),
        ("streams: {a: {database: 7}}", r"1:25: `database` must be the name"),
        ("streams: {a: {database: eu}}\n---\nstreams: {a: {database: us}}", r"another `database` already"),
        ("databases: {eu: {url_from: 'env:HR_NONE'}}\nstreams: {n: {database: eu}}", r"'eu' can't be used.*HR_NONE is not set"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=expected) as caught:
            await configuration.plan(database, declared(text))
        assert "secret" not in str(caught.value)


async def test_a_database_that_no_file_mentions_may_be_away(
    database: store.Database, eu: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _place(database)
    monkeypatch.delenv("HR_TEST_EU")
    plan = await configuration.plan(database, declared("name: a\nstreams: {orders: }"), prune=True)
    assert "HR_TEST_EU is not set" in plan.away["eu"]
    with pytest.raises(ConfigurationError, match=r"HR_TEST_EU is not set\. Set it where this server or command runs"):
        await configuration.export(database)


async def test_the_database_itself_is_not_a_further_one(
    database: store.Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HR_TEST_EU", dsn)
    with pytest.raises(ConfigurationError, match="server's own database"):
        await configuration.plan(database, declared(SHOP))


async def test_two_names_of_one_database_are_refused(database: store.Database, eu: store.Database) -> None:
    text = SHOP.replace("streams:", '  us: {url_from: "env:HR_TEST_EU"}\nstreams:', 1)
    with pytest.raises(ConfigurationError, match="'eu' and 'us' are the same one"):
        await configuration.plan(database, declared(text))
    await configuration.apply(database, declared(SHOP))
    with pytest.raises(ConfigurationError, match="'eu' and 'us' are the same one"):
        await configuration.plan(database, declared('databases: {us: {url_from: "env:HR_TEST_EU"}}'))


async def test_a_stream_that_servers_have_not_found_yet_is_not_created_again_elsewhere(
    database: store.Database, eu: store.Database
) -> None:
    await store.create_stream(eu, "direct")
    text = SHOP + "# \n---\nstreams: {direct: }"
    with pytest.raises(ConfigurationError, match="'direct' exists in the database 'eu' already"):
        await configuration.plan(database, declared(text))
    found = await _planned(database, text.replace("direct: ", "direct: {database: eu}"))
    assert "direct" not in [name for _, name, _ in found]


async def test_another_place_of_the_url_is_a_change(
    database: store.Database, eu: store.Database, eu_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configuration.apply(database, declared(SHOP))
    monkeypatch.setenv("HR_TEST_OTHER", eu_dsn)
    text = SHOP.replace("HR_TEST_EU", "HR_TEST_OTHER")
    assert await _planned(database, text) == [("change", "eu", None)]
    await configuration.apply(database, declared(text))
    assert [one.url_from for one in await store.databases(database)] == ["env:HR_TEST_OTHER"]


async def test_a_database_that_was_added_or_removed_meanwhile_is_another_plan(
    database: store.Database, eu: store.Database
) -> None:
    one = declared(SHOP).databases
    (change,) = databases.steps(one, {"eu": "env:HR_OTHER"})
    with pytest.raises(InUse, match="'eu' was added or removed since the plan"):
        await change.perform(database)
    await store.add_database(database, "eu", "env:HR_OTHER")
    (create,) = databases.steps(one, {})
    with pytest.raises(InUse, match="'eu' was added or removed since the plan"):
        await create.perform(database)
    assert [info.url_from for info in await store.databases(database)] == ["env:HR_OTHER"]


async def test_a_stream_that_was_created_anew_meanwhile_stays_where_it_is(
    database: store.Database, eu: store.Database
) -> None:
    await configuration.apply(database, declared(SHOP))
    part = Part("eu", eu, declared(SHOP))
    earlier = store.Managed("stream", ("visits",), str(uuid4()))
    await applying._delete(database, part, "shop", earlier, allow_delete=True, actor=Actor())
    assert await store.places_of(database, "stream", ["visits"]) == [store.Place("visits", "eu")]


async def test_rights_in_a_further_database_stand_below_it(
    database: store.Database, role: str, eu: store.Database
) -> None:
    text = SHOP.replace(
        'eu: {url_from: "env:HR_TEST_EU"}',
        f'eu: {{url_from: "env:HR_TEST_EU", grants: {{{role}: {{publish: [visits], observe: all}}}}}}',
    )
    await configuration.apply(database, declared(text))
    assert await _planned(database, text) == []
    assert (len(await store.grants(eu)), await store.grants(database)) == (2, [])
    # Of two streams of one name, the one that requests reach is exported.
    await store.create_stream(eu, "orders")
    exported = await configuration.export(database, "shop")
    assert exported.document["databases"]["eu"]["grants"] == {role: {"observe": "all", "publish": ["visits"]}}
    assert exported.document["streams"]["visits"]["database"] == "eu"
    assert exported.left_out == ("stream orders of the database 'eu'",)
    assert await _planned(database, exported.text, prune=True) == []


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A role without rights."""
    name = f"hr_test_{uuid4().hex[:8]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {name}")  # type: ignore[call-overload]
        yield name
        connection.execute(f"drop role {name}")  # type: ignore[call-overload]
