"""Endpoints that attack the server that pushes to them, or the other consumers of it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import pytest
import pytest_asyncio
from aiohttp import web

from headrace import App, store
from headrace.model.ack_ids import AckIds
from headrace.model.outcomes import RELEASE
from headrace.model.push import Push
from headrace.model.specs import Backoff
from headrace.runtime.messages.failures import failure_of
from headrace.server.push import http_client
from headrace.server.push.addresses import AllowedAddresses
from headrace.server.push.handler import PushHandler, Unsent
from headrace.server.push.http_client import PlaceForRequest, PushClient, PushClients, Resolver
from headrace.server.push.request_bodies import RequestBodies
from headrace.server.push.signing import RequestSigner
from tests.runtime.running import Gate, eventually, parked
from tests.server.push.endpoints import Endpoint, PushApp, Request, listening, running_push
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def pit() -> AsyncIterator[Endpoint]:
    """An endpoint that takes requests and never answers."""
    gate = Gate()

    async def silent(_request: Request) -> web.StreamResponse:
        await gate.wait()
        return web.Response()

    pit = Endpoint()
    pit.answer = silent
    async with listening(pit):
        yield pit


async def test_a_tar_pit_holds_up_no_other_consumer(
    dsn: str, endpoint: Endpoint, pit: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 4)
    async with running_push(dsn, app=App(dsn, shutdown_timeout=0.1)) as push_app:
        await push_app.declare(pit.url, "pit", "tar", timeout=300, concurrency=(8, 8))
        await push_app.app.publish_many("tar", [(f"k.{n}", n) for n in range(8)])
        await pit.until(4)  # all connections that there are
        await push_app.declare(endpoint.url, timeout=1, max_deliver=1, concurrency=(8, 8))
        await push_app.app.publish_many("orders", [(f"k.{n}", n) for n in range(20)])
        info = await push_app.done()
        assert (len(endpoint.requests), info.dead_letters) == (20, 0)
        assert {request.message["attempt"] for request in endpoint.requests} == {1}
        assert endpoint.highest <= 2
        assert len(pit.requests) == 4


async def test_consumers_share_connections_equally_also_as_they_come_and_go() -> None:
    clients = PushClients(AllowedAddresses(), connections=10)
    first = clients.open(1)
    assert first.share.total_tokens == 10
    others = [clients.open(1) for _ in range(2)]
    assert [client.share.total_tokens for client in (first, *others)] == [3, 3, 3]
    more = [clients.open(1) for _ in range(20)]
    assert {client.share.total_tokens for client in (first, *others, *more)} == {1}
    for client in (*others, *more):
        clients.close(client)
    assert first.share.total_tokens == 10
    clients.close(first)


async def test_a_stream_with_many_consumers_takes_nothing_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_LOOKUPS", 10)
    clients = PushClients(AllowedAddresses(), connections=10)
    victim = clients.open(1)
    attackers = [clients.open(2) for _ in range(200)]
    assert victim.share.total_tokens == victim.of_stream.connections.total_tokens == 5
    assert victim.of_stream.lookups.total_tokens == 5
    done, held = anyio.Event(), {1: 0, 2: 0}

    async def hold(client: PushClient) -> None:
        async with PlaceForRequest(client, 60) as connected:
            held[client.stream] += connected
            await done.wait()

    async with anyio.create_task_group() as group:
        for client in (*attackers, *[victim] * 6):
            group.start_soon(hold, client)
        await anyio.wait_all_tasks_blocked()
        assert held == {1: 5, 2: 5}  # and not one for each consumer
        done.set()
    async with PlaceForRequest(attackers[-1], 60) as connected:
        assert connected
    assert attackers[0].of_stream.connections.borrowed_tokens == victim.share.borrowed_tokens == 0
    for attacker in attackers:
        clients.close(attacker)
    assert (victim.share.total_tokens, victim.of_stream.lookups.total_tokens) == (10, 10)
    clients.close(victim)


async def test_to_wait_for_a_connection_is_no_attempt(endpoint: Endpoint) -> None:
    clients = PushClients(AllowedAddresses(["loopback"]), connections=1)
    client = clients.open(1)
    push = Push(url=endpoint.url, timeout=0.1)
    bodies = RequestBodies(1, "7b6c5a52-0000-4000-8000-000000000000", AckIds(b"k" * 32))
    handler = PushHandler(push, bodies, RequestSigner("c", None), client, "test", lambda: datetime.now(UTC))
    lease = SimpleNamespace(deadline=float("inf"))
    message: Any = SimpleNamespace(
        seq=1, settled=False, lease=lease, _acknowledger=SimpleNamespace(clock=time.monotonic)
    )
    taken = object()
    await client.share.acquire_on_behalf_of(taken)
    with pytest.raises(Unsent, match=r"None of the consumer's connections became free within 0\.1 s") as unsent:
        await handler._send((message,), b"{}")
    assert failure_of(unsent.value, 1, Backoff()) == RELEASE
    client.share.release_on_behalf_of(taken)
    assert await handler._send((message,), b"{}") is None
    assert len(endpoint.requests) == 1
    clients.close(client)


async def test_an_endpoint_that_never_shakes_hands_costs_no_attempt(push_app: PushApp) -> None:
    """It accepts connections, and never begins TLS."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        await push_app.declare(f"https://127.0.0.1:{port}/", timeout=0.1, max_deliver=1)
        await push_app.app.publish("orders", "k", 1)
        await push_app.parked(attempts=0)
        assert (await push_app.info()).dead_letters == 0


async def test_a_consumer_that_reaches_nothing_pauses_as_a_whole(push_app: PushApp) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    await listener.aclose()
    await store.create_stream(push_app.app.database, "orders")
    await push_app.app.publish_many("orders", [(f"k.{n}", n) for n in range(100)])
    await push_app.declare(f"http://127.0.0.1:{port}/", max_deliver=1, concurrency=(30, 30))

    async def is_paused() -> bool:
        running = push_app.push_consumers.statistics().get("orders:ship")
        return bool(running and running["breaker"]["state"] == "open" and not (await push_app.info()).in_flight)

    await eventually(is_paused)
    assert (await push_app.info()).dead_letters == 0
    assert {row["attempts"] for row in await parked(push_app.app)} == {0}


async def test_a_silent_name_server_holds_up_no_other_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    began = threading.Semaphore(0)
    resolving = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "silent.example":
            began.release()
            answered.wait(60)
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return resolving("127.0.0.1" if host == "shop.example" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    lookups, of_stream = anyio.CapacityLimiter(100), anyio.CapacityLimiter(100)
    try:
        async with anyio.create_task_group() as group:
            for resolver in [Resolver(of_stream, lookups) for _ in range(40)]:  # more than the event loop has threads
                for _ in range(3):
                    group.start_soon(_fails, resolver)
            for _ in range(40):
                await anyio.to_thread.run_sync(began.acquire, limiter=anyio.CapacityLimiter(1))
            assert not began.acquire(blocking=False)  # one of each consumer
            (found,) = await Resolver(of_stream, lookups).resolve("shop.example", 80)
            assert found[4] == ("127.0.0.1", 80)
            # Other parts of the server look up names, too, such as the database's.
            assert await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
            answered.set()
    finally:
        answered.set()


async def _fails(resolver: Resolver) -> None:
    with pytest.raises(socket.gaierror):
        await resolver.resolve("silent.example", 80)


async def test_an_invalid_url_of_before_is_logged_as_a_sentence(
    push_app: PushApp, caplog: pytest.LogCaptureFixture
) -> None:
    """A database may have consumers whose URLs were accepted by an earlier version."""
    number = await push_app.declare("http://shop.example/hidden")
    url = f"http://{'a' * 300}.example/hidden"
    await push_app.app.database.fetch(
        "update headrace_internal.consumers set push = (push::jsonb || jsonb_build_object('url', $1::text))::json, version = version + 1 where id = $2",
        url, number,
    )  # fmt: skip
    push_app.push_consumers.refresh()

    async def is_logged() -> bool:
        push_app.push_consumers.refresh()
        return bool(logged(caplog, "push consumer failed"))

    await eventually(is_logged)
    (record, *_) = logged(caplog, "push consumer failed")
    assert "of the push URL is invalid" in record.getMessage()
    assert record.exc_info is None
    assert "hidden" not in caplog.text
