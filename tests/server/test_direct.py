"""Usual requests are answered without a task. They pass the same checks, and nothing is lost when clients leave."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import pytest
import pytest_asyncio
from uvicorn.protocols.http.flow_control import FlowControl

from headrace import App
from headrace.model.specs import ConsumerSpec
from headrace.server.access import token_cache
from headrace.server.asgi import Server
from headrace.server.data_plane import lookup_cache
from headrace.server.http import Response
from headrace.server.options import Options
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.listener import Address, Listener
from tests.server.raw import Client, connected, request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

STREAM = b"/v1/streams/orders"
CONSUMER = STREAM + b"/consumers/all"
RECEIVE = request(b"", path=CONSUMER + b"/receive?batch_size=10").replace(b"POST", b"GET")
WAIT = request(b"", path=CONSUMER + b"/receive?batch_size=10&wait_for=60s").replace(b"POST", b"GET")


class Serving:
    """A server that listens, and how many requests were answered by a coroutine."""

    def __init__(self, server: Server, listener: Listener, port: int, dsn: str) -> None:
        self.server = server
        self.dsn = dsn
        self.listener = listener
        self.port = port
        self.by_coroutines = 0

    @property
    def counted(self) -> tuple[int, int, int]:
        limits = self.server.limits
        return limits.under_way, limits.waiting, limits.held

    def reads_nothing(self) -> FlowControl:
        """Let the server think that its only client reads nothing. Returns what ends that."""
        (connection,) = self.listener._state.connections
        connection.flow.pause_writing()
        return connection.flow


@pytest_asyncio.fixture
async def serving(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    monkeypatch.setattr(lookup_cache, "CACHE_TTL", 3600.0)  # however slow the machine is
    monkeypatch.setattr(token_cache, "REFRESH_AFTER", 3600.0)
    app = App(dsn, streams=["orders"])
    server = Server(app, Options())
    bound = Address("127.0.0.1", 0).bind()
    listener = Listener(server, server.limits, find_endpoint=server.find_endpoint)
    one = Serving(server, listener, bound.getsockname()[1], dsn)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    real = server._answer_exchange

    def counted(*args: Any) -> Any:
        one.by_coroutines += 1
        return real(*args)

    monkeypatch.setattr(server, "_answer_exchange", counted)
    async with app.running():
        await app.admin.create_consumer(ConsumerSpec(stream="orders", name="all"))
        await listener.open([bound])
        await until(lambda: not server.databases.exist)  # until it has looked, there may be further databases
        yield one
        await listener.abort()
    assert one.counted == (0, 0, 0)
    gc.collect()  # an exception that was never retrieved is reported when its future is deleted
    assert failures == []


def published(*keys: str) -> bytes:
    messages = [{"key": key, "data": key} for key in keys]
    return request(msgspec.json.encode({"messages": messages}), path=STREAM + b"/messages")


def acked(ack_ids: list[str], **more: Any) -> bytes:
    return request(msgspec.json.encode({"ack_ids": ack_ids, **more}), path=CONSUMER + b"/ack")


async def received(client: Client, ask: bytes = RECEIVE) -> dict[str, str]:
    """Receive messages. Returns their ack ids by their keys."""
    data = msgspec.json.decode((await client.ask(ask)).body)["data"]
    return {one["message"]["key"]: one["ack_id"] for one in data}


@asynccontextmanager
async def locked(serving: Serving, table: str) -> AsyncIterator[None]:
    """Let statements that use a table wait."""
    connection = await asyncpg.connect(serving.dsn)
    try:
        async with connection.transaction():
            await connection.execute(f"lock table {table} in access exclusive mode")
            yield
    finally:
        await connection.close()


def stopped_publishing(serving: Serving) -> AbstractAsyncContextManager[None]:
    """Let what publishes to the stream wait."""
    return locked(serving, "headrace_streams.orders")


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
            await serving.server.app.admin.delete_consumer("orders", "all", force=True)
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


async def test_tokens_that_are_created_while_a_head_is_known_close_the_way_for_it(serving: Serving) -> None:
    ask = published("a").replace(b"\r\n\r\n", b"\r\nauthorization: Bearer hr_000000000000_%b\r\n\r\n" % (b"0" * 32), 1)
    async with connected(serving.port) as client:
        await warm(serving, client)
        assert [(await client.ask(ask)).status for _ in range(2)] == [200, 200]
        assert serving.by_coroutines == 0
        await serving.server.app.admin.create_token("one", ["publish"])
        serving.server.access.changed("")
        assert [(await client.ask(ask)).status for _ in range(2)] == [401, 401]


async def test_metrics_count_requests_as_those_that_a_coroutine_answers(serving: Serving) -> None:
    def counted() -> Counter[tuple[str, ...]]:
        samples = serving.server.monitoring.requests.samples()
        counts = {labels: count for suffix, labels, count in samples if suffix == "_count"}
        return Counter({tuple(value for _, value in labels): int(count) for labels, count in counts.items()})

    async with connected(serving.port) as client:
        await warm(serving, client)
        before = counted()
        await client.ask(published("a"))
        await client.ask(acked(list((await received(client)).values())))
        same = counted()
        assert (set(same), set((same - before).values())) == (set(before), {1})
        await client.send(WAIT)
        await until(lambda: serving.server.limits.waiting == 1)
    await until(lambda: serving.server.limits.waiting == 0)
    assert counted() - same == Counter({("receive", "GET", "499"): 1})
    assert serving.by_coroutines == 0


# --- unexpected errors


@pytest.mark.parametrize("name", ["begin_publish", "end_publish"])
async def test_an_unexpected_error_is_answered_and_the_connection_goes_on(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("unexpected")

    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a"))
        with monkeypatch.context() as patch:
            patch.setattr(serving.server.engine, name, fails)
            for ask in (published("a"), published("another")):  # with a known head, and with one that is parsed
                assert (await client.ask(ask)).status == 500
        assert serving.counted == (0, 0, 0)
        assert (await client.ask(published("a"))).status == 200


async def test_a_response_that_cannot_be_written_leaves_nothing_counted(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)

        def fails(exchange: Exchange, response: Response) -> None:
            raise RuntimeError("unexpected")

        reported = asyncio.Event()
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda *_: reported.set())
        monkeypatch.setattr(Exchange, "respond_now", fails)
        await client.send(published("a"))
        async with asyncio.timeout(20):
            await reported.wait()
        loop.set_exception_handler(before)
        assert serving.counted == (0, 0, 0)


# --- the end of the server


async def test_a_server_that_drains_answers_those_who_wait(serving: Serving) -> None:
    async with connected(serving.port) as client, connected(serving.port) as publisher:
        await warm(serving, client)
        await client.send(WAIT)
        await until(lambda: serving.server.limits.waiting == 1)
        async with stopped_publishing(serving):
            await publisher.send(published("a"))
            await until(lambda: serving.server.limits.under_way == 1)
            serving.listener.close()
            serving.server.end_waits()
        async with asyncio.timeout(20):
            await serving.listener.drained()
        waited, done = await client.answer(), await publisher.answer()
        assert (waited.status, waited.headers["connection"]) == (200, "close")
        assert (done.body, done.headers["connection"]) == (b'{"data":{"published":1}}', "close")
        assert await client.end() == await publisher.end() == b""
        assert serving.by_coroutines == 0
    engine = serving.server.engine  # a lease call that ran has the message, or it is still there
    rest = await engine.receive(await engine.consumer("orders", "all"), 10)
    assert [*(one["message"]["key"] for one in msgspec.json.decode(waited.body)["data"]), *rest.keys] == ["a"]


async def test_an_aborted_server_closes_the_connections_of_those_who_wait(serving: Serving) -> None:
    async with connected(serving.port) as client, connected(serving.port) as publisher:
        await warm(serving, client)
        await client.send(WAIT)
        async with stopped_publishing(serving):
            await publisher.send(published("a"))
            await until(lambda: serving.counted[:2] == (1, 1))
            await serving.listener.abort()
            assert serving.counted == (0, 0, 0)
        assert await client.end() == await publisher.end() == b""
    share = await serving.server.engine.receive(await serving.server.engine.consumer("orders", "all"), 10, 20.0)
    assert share.keys == ["a"]  # calls in progress continue, and its client may send it again


async def test_responses_to_an_unread_connection_end_with_an_aborted_server(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        serving.reads_nothing()
        await client.send(published("a"))
        await until(lambda: serving.server.engine.counts.published == 2)
        assert serving.counted[0] == 1
        await serving.listener.abort()
        assert serving.counted == (0, 0, 0)


# --- slow readers


async def test_a_response_waits_until_the_client_has_read_the_one_before(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        flow = serving.reads_nothing()
        await client.send(published("a"))
        await until(lambda: serving.server.engine.counts.published == 2)
        assert serving.counted == (1, 0, len(published("a").partition(b"\r\n\r\n")[2]))
        flow.resume_writing()
        assert (await client.answer()).status == 200
        assert serving.counted == (0, 0, 0)
        assert serving.by_coroutines == 0


async def test_messages_for_a_client_that_reads_nothing_and_leaves_are_released(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a"))
        serving.reads_nothing()
        await client.send(RECEIVE)
        await until(lambda: serving.server.engine.counts.received == 2)
        assert serving.counted == (0, 1, 0)
    async with connected(serving.port) as other:
        async with asyncio.timeout(20):
            assert set(await received(other, WAIT)) == {"a"}
    assert serving.counted == (0, 0, 0)
    await until(lambda: serving.server.engine.counts.given_back == 1)


# --- clients that leave


async def test_what_a_client_has_sent_is_done_although_it_leaves(serving: Serving) -> None:
    engine = serving.server.engine
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a"))
        ids = list((await received(client)).values())
        async with stopped_publishing(serving):
            async with connected(serving.port) as leaving:
                await leaving.send(published("b"))
                await until(lambda: serving.server.limits.under_way == 1)
            async with connected(serving.port) as leaving:
                await leaving.send(acked(ids))
        await until(lambda: engine.counts.published == 3 and engine.counts.acked == 2)
        assert set(await received(client, WAIT)) == {"b"}
        assert serving.counted == (0, 0, 0)
        assert serving.by_coroutines == 0


@pytest.mark.parametrize("header", [b"", b"x-odd: 1\r\n"])
async def test_one_that_waits_is_answered_before_what_was_sent_after_it_ends_the_connection(
    serving: Serving, header: bytes
) -> None:
    async with connected(serving.port) as client, connected(serving.port) as other:
        await warm(serving, client)
        await client.send(WAIT.replace(b"\r\n\r\n", b"\r\n%b\r\n" % header) + published("a") + b"odd\r\n\r\n")
        await other.ask(published("b"))
        assert [one["message"]["key"] for one in msgspec.json.decode((await client.answer()).body)["data"]] == ["b"]
        assert (await client.answer()).body == b'{"data":{"published":1}}'
        assert (await client.answer()).status == 400
        assert await client.end() == b""


# --- requests sent ahead, and other heads


async def test_requests_sent_ahead_are_answered_in_their_order(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.send(published("a") + published("b", "c") + RECEIVE + published("d"))
        bodies = [(await client.answer()).body for _ in range(4)]
        assert [bodies[0], bodies[1], bodies[3]] == [b'{"data":{"published":%d}}' % count for count in (1, 2, 1)]
        assert [one["message"]["key"] for one in msgspec.json.decode(bodies[2])["data"]] == ["a", "b", "c"]


async def test_a_request_that_ends_its_connection_is_answered_before(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
    for head, by_coroutines in ((b"connection: close", 0), (b"connection: keep-alive, close", 0)):
        async with connected(serving.port) as client:
            ask = published("a").replace(b"\r\n\r\n", b"\r\n" + head + b"\r\n\r\n", 1)
            answer = await client.ask(ask + published("b"))
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await client.end() == b""
            assert serving.by_coroutines == by_coroutines
    async with connected(serving.port) as client:
        assert (await client.ask(published("a").replace(b"HTTP/1.1", b"HTTP/1.0"))).headers["connection"] == "close"
        assert await client.end() == b""


# --- what changes between the beginning and the end


async def test_an_ack_under_way_while_caches_are_cleared_is_answered(serving: Serving) -> None:
    async with connected(serving.port) as client, connected(serving.port) as other:
        await warm(serving, client)
        await client.ask(published("a"))
        ids = list((await received(client)).values())
        async with locked(serving, "headrace_internal.leases"):
            await client.send(acked(ids))
            await until(lambda: serving.server.limits.under_way == 1)
            serving.server.engine.clear_caches()
        assert (await client.answer()).body == b'{"success":true}'
        assert (await other.ask(published("b"))).status == 200
        assert set(await received(other, WAIT)) == {"b"}
        assert (serving.server.engine.counts.acked, serving.server.engine.counts.stale) == (2, 0)


# --- acks with a receive


def receiving(ack_ids: list[str], **more: Any) -> bytes:
    body = {"batch_size": 10, "ack_ids": ack_ids, **more}
    return request(msgspec.json.encode(body), path=CONSUMER + b"/receive")


async def test_a_receive_that_acks_a_whole_lease_needs_no_coroutine(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a", "b"))
        ids = await received(client)
        await client.ask(published("c"))
        answer = msgspec.json.decode((await client.ask(receiving(list(ids.values())))).body)
        assert ([one["message"]["key"] for one in answer["data"]], answer["stale"]) == (["c"], [])
        assert (serving.by_coroutines, serving.server.engine.counts.acked) == (0, 3)
        await client.ask(receiving(list(ids.values())))
        assert serving.by_coroutines == 1  # they are acked, so they are of no lease that it has given


async def test_a_receive_that_acks_a_lost_lease_reports_its_ids(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a"))
        ids = list((await received(client)).values())
        await serving.server.app.database.fetch("delete from headrace_internal.leases")
        assert msgspec.json.decode((await client.ask(receiving(ids))).body) == {"data": [], "stale": ids}
        assert serving.by_coroutines == 0


@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_that_is_lost_loses_neither_messages_nor_acks(serving: Serving, whole: bool) -> None:
    engine = serving.server.engine
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a", "b"))
        ids = list((await received(client)).values())
        await client.ask(published("c"))
        ids = ids if whole else ids[:1]
        # It leaves while its acks are settled.
        async with locked(serving, "headrace_internal.leases"), connected(serving.port) as leaving:
            await leaving.send(receiving(ids, wait_for="60s"))
            await until(lambda: serving.counted[0] + serving.counted[1] == 1)
        await until(lambda: engine.counts.acked == 1 + len(ids))
        await until(lambda: serving.counted == (0, 0, 0))
        assert set(await received(client, WAIT)) == {"c"}

        async with connected(serving.port) as leaving:  # it leaves while it waits, after its acks
            await leaving.send(receiving([], wait_for="60s"))
            await until(lambda: serving.counted[1] == 1)
        await until(lambda: serving.counted == (0, 0, 0))
        await client.ask(published("d"))
        assert set(await received(client, WAIT)) == {"d"}


async def test_acks_are_settled_although_the_receive_of_their_request_is_refused(serving: Serving) -> None:
    async with connected(serving.port) as client:
        await warm(serving, client)
        await client.ask(published("a"))
        ids = list((await received(client)).values())
        consumer = await serving.server.engine.consumer("orders", "all")
        receivers = serving.server.engine.receivers(consumer)
        assert receivers is not None
        receivers._waits = consumer.spec.max_waiting
        assert (await client.ask(receiving(ids))).status == 429
        receivers._waits = 0
        assert serving.server.engine.counts.acked == 2
        assert serving.by_coroutines == 0
