"""Versions of payloads: upcasters, their chain, the header, and versions that a process doesn't know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App, ConfigurationError, InvalidData, Message, Reject, Stream, UnreadablePayload
from headrace.testing import Harness
from tests.typed.pages import examples, page_module


class Order(msgspec.Struct):
    id: int
    steps: list[int] = []


def chain(length: int) -> tuple[App, Stream[Order]]:
    """A stream at version `length` + 1, whose upcasters note in the data that they have run."""
    app = App()
    orders = app.stream("orders", Order)

    def noting(version: int) -> Callable[[Any], Any]:
        return lambda data: {**data, "steps": [*data.get("steps", []), version]}

    for version in range(length, 0, -1):  # their order of declaration doesn't count
        orders.upcaster(from_version=version)(noting(version))
    return app, orders


@given(st.integers(0, 6), st.integers(1, 7))
def test_a_message_passes_every_upcaster_from_its_version_on(length: int, version: int) -> None:
    app, _ = chain(length)
    stored_as = app._formats["orders"]
    headers = None if version == 1 else json.dumps({"headrace-version": version})
    if version > length + 1:
        with pytest.raises(
            UnreadablePayload, match=f"has version {version}, and this process knows .* up to {length + 1}"
        ):
            stored_as.read("k", '{"id":1}', headers)
    else:
        data = msgspec.json.decode(stored_as.read("k", '{"id":1}', headers), type=Order)
        assert data.steps == list(range(version, length + 1))


def test_publish_sets_the_present_version_if_it_is_not_the_first() -> None:
    for length, headers in ((0, None), (2, {"headrace-version": 3})):
        app, _ = chain(length)
        assert app._formats["orders"].outgoing("k", Order(1), None) == (Order(1), headers)
        assert list(app._formats["orders"].outgoing_many([("k", Order(1), {"a": 1})])) == [
            ("k", Order(1), {"a": 1} | (headers or {}))
        ]


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "2", None, [], 10**9])
def test_a_version_that_is_none_makes_a_dead_letter(version: Any) -> None:
    app, _ = chain(1)
    with pytest.raises(Reject, match="The header 'headrace-version' must be a number from 1"):
        app._formats["orders"].read("k", "{}", json.dumps({"headrace-version": version}))


def test_an_upcaster_that_returns_nothing_is_named() -> None:
    _, orders = chain(0)

    @orders.upcaster(from_version=1)
    def forgetful(data: dict[str, Any]) -> None:
        data["id"] = 2

    with pytest.raises(InvalidData, match="'forgetful' of 'orders' returned None: return the data of version 2"):
        orders._stored_as.read("k", '{"id":1}', None)
    assert orders._stored_as.read("k", "null", None) == "null"


async def waits(data: Any) -> Any: ...


@pytest.mark.parametrize(
    ("version", "function", "says"),
    [
        (0, dict, "from_version=0 of an upcaster must be the version that it takes"),
        (True, dict, "from_version=True"),
        ("1", dict, "from_version='1'"),
        (1, waits, "must be a plain function"),
        (1, "text", "must be a plain function"),
        (2, dict, "has two upcasters from version 2: '<lambda>' and"),
    ],
)
def test_an_upcaster_that_cannot_be_is_refused(version: Any, function: Any, says: str) -> None:
    _, orders = chain(2)
    with pytest.raises(ConfigurationError, match=says):
        orders.upcaster(from_version=version)(function)


@pytest.mark.asyncio
async def test_a_version_without_an_upcaster_stops_the_start() -> None:
    _, orders = chain(0)
    orders.upcaster(from_version=2)(dict)
    app: Any = orders._home
    with pytest.raises(ConfigurationError, match="is at version 3, and has no upcaster from version 1"):
        await app.preflight()


@pytest.mark.asyncio
async def test_handlers_take_all_versions_in_the_present_form(dsn: str) -> None:
    app, orders = chain(2)
    one: list[Order] = []
    many: list[Order] = []
    raw: list[tuple[str, dict[str, Any]]] = []

    @orders.consumer()
    async def single(order: Order, message: Message) -> None:
        one.append(order)
        raw.append((message.raw, message.headers))

    @app.consumer("orders", batch=10, on_batch_error="bisect", max_deliver=1)
    async def batch(orders: list[Order]) -> None:  # bisected, so that each is decoded more than once
        if any(order.id == 2 for order in orders):
            raise ValueError(len(orders))
        many.extend(orders)

    async with Harness(app, dsn) as harness:
        for number, headers in enumerate(
            ({"mine": 1}, {"headrace-version": 2}, {"headrace-version": 3}, {"headrace-version": 9}), 1
        ):
            await app.admin.send("orders", "k", json.dumps({"id": number}), json.dumps(headers))
        await orders.publish(Order(5), key="k2")
        await harness.drain()
        steps = {1: [1, 2], 2: [2], 3: [], 5: []}
        assert {order.id: order.steps for order in one} == steps
        assert {order.id: order.steps for order in many} == {n: found for n, found in steps.items() if n != 2}
        assert ('{"id":1,"steps":[1,2]}', {"mine": 1}) in raw
        assert harness.kinds("single", key="k") == ["acked", "acked", "acked", "retried"]
        assert "deploy the code of version 9 here" in (harness.outcomes("single", key="k")[-1].error or "")
        assert [letter.seq for letter in await harness.dead_letters("batch")] == [2, 4]
        [*_, newest] = await harness.published(orders, "k2")
        assert (newest.data, newest.headers) == (Order(5), {"headrace-version": 3})


@pytest.mark.asyncio
async def test_the_examples_of_the_page_run(dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_module("evolve-payloads", tmp_path)
    async with Harness(page.app, dsn) as harness:
        await harness.app.database.fetch(examples("evolve-payloads", "sql")[0])
        await page.app.admin.send("customers", "a", json.dumps({"name": "Grace Hopper", "email": "grace@navy.mil"}))
        await page.app.admin.send(
            "customers",
            "b",
            json.dumps({"first_name": "Alan", "last_name": "Turing"}),
            json.dumps({"headrace-version": 2}),
        )
        await harness.drain(raise_errors=True)
        assert sorted(capsys.readouterr().out.splitlines()) == ["Hello Ada", "Hello Alan", "Hello Grace"]
        assert [message.data.emails for message in await harness.published(page.customers)] == [
            [],
            ["grace@navy.mil"],
            [],
        ]
