"""`headrace stream`, `headrace consumer` and `headrace migrate` on a database given by an option."""

from __future__ import annotations

import json

import pytest

from headrace import store
from headrace.model.specs import Backoff, ConsumerSpec
from tests.cli.conftest import Headrace
from tests.support import servers


@pytest.fixture
def filled(dsn: str) -> str:
    """A database with the stream `orders`, which has three messages and a consumer, and the stream `parcels`."""

    async def fill() -> None:
        database = store.Database(dsn)
        await database.open()
        await store.create_stream(database, "parcels")
        await store.create_stream(database, "orders")
        await store.publish_many(database, "orders", ["a", "b", "c"], ["1", "2", "3"])
        spec = ConsumerSpec(stream="orders", name="ship", filters=("a", "b.>"), backoff=Backoff(delays=(1.0, 5.0)))
        await store.declare_consumer(database, spec)
        await database.drain()

    servers.run(fill())
    return dsn


def test_streams_in_a_table_and_as_json(headrace: Headrace, filled: str) -> None:
    table = headrace("stream", "ls", "--database", filled).out
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["orders", "3"], ["parcels", "0"]]
    found = json.loads(headrace("stream", "ls", "--json", "--database", filled).out)
    assert [(one["name"], one["messages"], one["consumers"]) for one in found] == [("orders", 3, 1), ("parcels", 0, 0)]


def test_one_stream(headrace: Headrace, filled: str) -> None:
    assert "ship (lag 3)" in headrace("stream", "info", "orders", "--database", filled).out
    found = json.loads(headrace("stream", "info", "orders", "--json", "--database", filled).out)
    assert (found["stream"]["last_seq"], found["consumers"][0]["name"]) == (3, "ship")


def test_consumers_in_a_table_and_as_json(headrace: Headrace, filled: str) -> None:
    table = headrace("consumer", "ls", "--database", filled).out
    assert table.splitlines()[1].split() == ["orders", "ship", "3", "0", "0", "0", "0", "0"]
    assert json.loads(headrace("consumer", "ls", "parcels", "--json", "--database", filled).out) == []


def test_one_consumer(headrace: Headrace, filled: str) -> None:
    output = headrace("consumer", "info", "orders", "ship", "--database", filled).out
    assert "ship of orders" in output
    assert "a, b.>" in output
    found = json.loads(headrace("consumer", "info", "orders", "ship", "--json", "--database", filled).out)
    assert (found["lag"], found["settings"]["filters"]) == (3, ["a", "b.>"])


def test_the_database_comes_from_the_environment(
    headrace: Headrace, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE", filled)
    assert "orders" in headrace("stream", "ls").out


def test_nothing_yet(headrace: Headrace, dsn: str) -> None:
    assert "There are no streams" in headrace("stream", "ls", "--database", dsn).err
    assert "There are no consumers" in headrace("consumer", "ls", "--database", dsn).err


def test_migrate_says_what_it_did_and_does_it_once(headrace: Headrace, empty_dsn: str) -> None:
    first = headrace("migrate", "--database", empty_dsn)
    assert first.code == 0
    assert "applied migration 1" in first.out
    assert "applied" not in headrace("migrate", "--database", empty_dsn).out
