"""Usual requests are answered without a task. They pass the same checks, and nothing is lost when clients leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace import App
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.server.transport.listener import Address, Listener
from tests.server.raw import Client, connected, request

pytestmark = pytest.mark.asyncio

STREAM = b"/v1/streams/orders"
CONSUMER = STREAM + b"/consumers/all"
RECEIVE = request(b"", path=CONSUMER + b"/receive?batch_size=10").replace(b"POST", b"GET")
WAIT = request(b"", path=CONSUMER + b"/receive?batch_size=10&wait_for=60s").replace(b"POST", b"GET")


class Serving:
    """A server that listens, and how many requests were answered by a coroutine."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.by_coroutines = 0


@pytest_asyncio.fixture
async def serving(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options())
    bound = Address("127.0.0.1", 0).bind()
    one = Serving(server, bound.getsockname()[1])
    real = server._answer_exchange

    def counted(*args: Any) -> Any:
        one.by_coroutines += 1
        return real(*args)

    monkeypatch.setattr(server, "_answer_exchange", counted)
    listener = Listener(server, server.limits, find_endpoint=server.find_endpoint)
    async with app.running():
        await app.admin.create_consumer(ConsumerSpec(stream="orders", name="all"))
        await listener.open([bound])
        yield one
        await listener.abort()
    limits = server.limits
    assert (limits.under_way, limits.waiting, limits.held) == (0, 0, 0)


def published(*keys: str) -> bytes:
    messages = [{"key": key, "data": key} for key in keys]
    return request(msgspec.json.encode({"messages": messages}), path=STREAM + b"/messages")


def acked(ack_ids: list[str], **more: Any) -> bytes:
    return request(msgspec.json.encode({"ack_ids": ack_ids, **more}), path=CONSUMER + b"/ack")


async def received(client: Client, ask: bytes = RECEIVE) -> dict[str, str]:
    """Receive messages. Returns their ack ids by their keys."""
    data = msgspec.json.decode((await client.ask(ask)).body)["data"]
    return {one["message"]["key"]: one["ack_id"] for one in data}


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go on until a condition is met."""
    async with asyncio.timeout(20):
        for _ in iter(condition, True):
            await asyncio.sleep(0)


async def warm(serving: Serving, client: Client) -> None:
    """Let the server look up what it caches."""
    await client.ask(published("warm"))
    await client.ask(acked(list((await received(client)).values())))
    assert serving.by_coroutines
    serving.by_coroutines = 0


async def test_publish_receive_and_ack_need_no_coroutine(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        assert (await client.ask(published("a", "b"))).body == b'{"data":{"published":2}}'
        ids = await received(client)
        assert set(ids) == {"a", "b"}
        assert (await client.ask(acked(list(ids.values())))).body == b'{"success":true}'
        assert await received(client) == {}
        assert serving.by_coroutines == 0
        assert serving.server.engine.counts.acked == 3


async def test_single_and_foreign_ack_ids_and_strict_acks_are_left_to_a_coroutine(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a", "b"))
        ids = list((await received(client)).values())
        assert (await client.ask(acked(ids[:1]))).status == 200
        assert (await client.ask(acked(["odd"]))).status == 422
        assert (await client.ask(acked(ids, strict=True))).status == 409  # the first one is acked already
        assert serving.by_coroutines == 3


async def test_an_ack_of_a_lost_lease_changes_nothing(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a"))
        ids = list((await received(client)).values())
        await serving.server.app.database.fetch("delete from headrace_internal.leases")
        assert (await client.ask(acked(ids))).body == b'{"success":true}'
        assert serving.by_coroutines == 0
        assert serving.server.engine.counts.stale == 1


async def test_one_request_that_cannot_be_published_spoils_none_that_came_with_it(serving: Serving) -> None:
    async with connected(serving.port) as client, connected(serving.port) as other, connected(serving.port) as third:
        await warm(serving, client)
        asks = [client.ask(published("a")), other.ask(published("b", "no..key")), third.ask(published("c"))]
        good, bad, last = await asyncio.gather(*asks)
        assert (good.status, bad.status, last.status) == (200, 422, 200)
        assert b"messages[1].key" in bad.body
        assert set(await received(client)) == {"a", "c"}


async def test_invalid_requests_with_a_known_head_get_their_errors(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        right = published("a")
        assert (await client.ask(right)).status == 200
        body = right.partition(b"\r\n\r\n")[2]
        assert (await client.ask(right.replace(body, b"{" * len(body)))).status == 400
        assert (await client.ask(RECEIVE.replace(b"batch_size=10", b"batch_size=0"))).status == 422
        assert (await client.ask(RECEIVE.replace(b"batch_size=10", b"odd=1"))).status == 422
        assert (await client.ask(right)).status == 200


async def test_what_waits_for_a_client_that_has_left_goes_to_the_next(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        async with connected(serving.port) as leaving:
            await leaving.send(WAIT)
            await until(lambda: serving.server.limits.waiting == 1)
        answer = asyncio.create_task(received(client, WAIT))
        async with connected(serving.port) as publisher:
            await publisher.ask(published("a"))
        async with asyncio.timeout(20):
            assert set(await answer) == {"a"}
        await until(lambda: serving.server.limits.waiting == 0)
        assert serving.by_coroutines == 0


async def test_a_deleted_consumer_is_unknown_to_those_who_wait_for_it(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        async with connected(serving.port) as waiting:
            await waiting.send(WAIT)
            await until(lambda: serving.server.limits.waiting == 1)
            await serving.server.app.admin.delete_consumer("orders", "all")
            serving.server.engine.published("orders")
            assert (await waiting.answer()).status == 404


async def test_tokens_close_the_way_without_a_coroutine(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await serving.server.app.admin.create_token("one", ["publish"])
        serving.server.access.changed("")
        assert (await client.ask(published("a"))).status == 401
        assert (await client.ask(RECEIVE)).status == 401
        assert serving.by_coroutines == 2
