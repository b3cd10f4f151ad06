"""Callers without a token, which are many, slow and large. They never take what callers with a token need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from headrace import App
from headrace.server.asgi import Server
from headrace.server.errors import Problem
from headrace.server.options import Options
from headrace.server.transport import limits as transport_limits
from headrace.server.transport.clients import Clients
from headrace.server.transport.limits import Limits
from headrace.sources.webhook import WebhookSpec
from tests.runtime.running import eventually
from tests.server.raw import Answer, Client, connected, listening, request

pytestmark = pytest.mark.asyncio

OPTIONS = Options(max_requests=32, max_body=10_000, max_held=40_000, discard_time=0.05, max_connections=300)
"""Strangers have 8 places, of which an address has 2, and 10,000 bytes."""

PUBLISH = b"/v1/streams/orders/messages"


class Place(NamedTuple):
    server: Server
    port: int
    token: bytes

    async def publish(self) -> Answer:
        """Publish with a token, on a separate connection."""
        return await self.ask(request(b'{"key":"k","data":1}', b"authorization: Bearer " + self.token, path=PUBLISH))

    async def ask(self, *pieces: bytes) -> Answer:
        async with connected(self.port) as client:
            return await client.ask(*pieces)


@asynccontextmanager
async def serving(dsn: str, options: Options = OPTIONS) -> AsyncIterator[Place]:
    app = App(dsn, streams=["orders"])
    server = Server(app, options)
    async with app.running(), listening(server, server.limits) as port:
        made = await app.admin.create_token("shop", ["publish:orders", "consume:orders"])
        server.access.changed(made.id)
        await app.admin.create_source(WebhookSpec(name="hook", stream="orders"))
        place = Place(server, port, made.token.encode())
        assert (await place.publish()).status == 200
        yield place


@pytest_asyncio.fixture
async def place(dsn: str) -> AsyncIterator[Place]:
    async with serving(dsn) as place:
        yield place


def head(path: bytes, size: int = 1000, *headers: bytes, method: bytes = b"POST") -> bytes:
    """The head of a request whose body doesn't come, or slowly."""
    return request(b"", *headers, method=method, path=path).replace(b"content-length: 0", b"content-length: %d" % size)


UNKNOWN = (
    (b"/v1/webhook/nowhere", 404, "unknown_source"),
    (b"/api/webhook/not%20a%20name", 404, "unknown_source"),
    (b"/nowhere", 404, "not_found"),
    (b"/", 404, "not_found"),
    (b"/console/x", 405, "method_not_allowed"),
    (b"/docs", 405, "method_not_allowed"),
    (b"/v1/streams", 401, "unauthorized"),
    (b"/v1/nowhere", 401, "unauthorized"),
    (PUBLISH, 401, "unauthorized"),
)
"""What is answered from the head alone."""


async def test_unknown_paths_webhooks_and_callers_are_answered_before_the_body_comes(place: Place) -> None:
    for path, status, code in UNKNOWN:
        for pieces in ([head(path)], [head(path), b"x" * 10]):
            answer = await place.ask(*pieces)
            assert (answer.status, answer.code) == (status, code), path
    answer = await place.ask(head(PUBLISH, 1000, b"authorization: Bearer hr_0123456789ab_" + b"0" * 40))
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert place.server.limits.held == 0


async def test_a_connection_ends_whose_unread_body_does_not_come(place: Place) -> None:
    async with connected(place.port) as client:
        assert (await client.ask(head(b"/v1/webhook/nowhere"))).status == 404
        assert await client.end() == b""
    async with connected(place.port) as client:  # one that comes is discarded, and the connection stays
        assert (await client.ask(head(b"/nowhere", 5))).status == 404
        assert (await client.ask(b"12345" + request(method=b"GET", path=b"/health"))).status == 200


@asynccontextmanager
async def many(port: int, count: int) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(port)) for _ in range(count)]


@pytest.mark.parametrize("path", [b"/v1/webhook/hook", b"/v1/webhook/nowhere", b"/v1/session", b"/nowhere"])
async def test_slow_strangers_leave_places_to_tokens(
    place: Place, path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_limits, "STRANGER_TIMEOUT", 0.2)
    async with many(place.port, 100) as clients:
        for client in clients:
            await client.send(head(path, 1000), b"x")
        for _ in range(20):
            answer = await place.publish()
            assert answer.status == 200, answer
        assert place.server.limits.under_way <= 8
        assert place.server.limits.held <= OPTIONS.held_for_strangers


async def test_large_strangers_leave_bytes_to_tokens(place: Place) -> None:
    async with many(place.port, 10) as clients:
        for client in clients:
            await client.send(head(b"/v1/webhook/hook", 9_900), b"x" * 9_800)
        await eventually(lambda: _holds(place, 9_800))
        body = b'{"key":"k","data":"%b"}' % (b"x" * 9_000)
        answer = await place.ask(request(body, b"authorization: Bearer " + place.token, path=PUBLISH))
        assert answer.status == 200, answer


async def _holds(place: Place, size: int) -> bool:
    return place.server.limits.held >= size


async def test_a_token_that_is_large_leaves_bytes_to_the_others(dsn: str) -> None:
    async with serving(dsn, Options(max_body=10_000, max_held=40_000)) as place:
        other = (await place.server.app.admin.create_token("other", ["publish:orders"])).token.encode()
        hostile = b"authorization: Bearer " + other
        async with many(place.port, 4) as clients:
            for client in clients:
                await client.send(head(PUBLISH, 9_900, hostile), b"x" * 9_000)
            refused = await asyncio.gather(*(client.answer() for client in clients[1:]))
            assert {(one.status, one.code) for one in refused} == {(429, "too_much_of_token")}
            body = b'{"key":"k","data":"%b"}' % (b"x" * 9_900)
            answer = await place.ask(request(body, b"authorization: Bearer " + place.token, path=PUBLISH))
            assert answer.status == 200, answer
        await eventually(lambda: _rests(place))
        assert place.server.limits._held == {}


async def _rests(place: Place) -> bool:
    return (place.server.limits.under_way, place.server.limits.held) == (0, 0)


async def test_a_webhook_is_delivered_while_strangers_from_elsewhere_are_slow(dsn: str) -> None:
    """Each address has a part of the places. Behind a proxy it is the one that the proxy has appended."""
    options = Options(max_requests=32, max_body=10_000, max_held=400_000, discard_time=0.05, proxy_from=("127.0.0.1",))
    async with serving(dsn, options) as place:
        async with many(place.port, 30) as clients:
            for number, client in enumerate(clients):
                forwarded = b"x-forwarded-for: 198.51.100.%d, 2001:db8::%d" % (number, number)
                await client.send(head(b"/v1/webhook/hook", 1000, forwarded), b"x")
            await eventually(lambda: _under_way(place, 2))
            for number in range(5):
                forwarded = b"x-forwarded-for: 203.0.113.%d" % number
                answer = await place.ask(request(b"{}", forwarded, path=b"/v1/webhook/hook"))
                assert answer.status == 200, answer
            assert place.server.limits.under_way == 2
        await eventually(lambda: _rests(place))


async def _under_way(place: Place, count: int) -> bool:
    return place.server.limits.under_way == count


async def test_a_flood_of_unknown_tokens_leaves_places_to_known_ones(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is slow to say that they are unknown."""
    asked, until = asyncio.Event(), asyncio.Event()
    find = place.server.access._cache.find

    async def slow(token_id: str) -> Any:
        if token_id.startswith("unknown"):
            asked.set()
            await until.wait()
        return await find(token_id)

    monkeypatch.setattr(place.server.access._cache, "find", slow)
    async with many(place.port, 60) as clients:
        for number, client in enumerate(clients):
            unknown = b"authorization: Bearer hr_unknown%05d_" % number + b"0" * 40
            await client.send(request(b'{"key":"k","data":1}', unknown, path=PUBLISH))
        await asked.wait()
        for _ in range(5):
            assert (await place.publish()).status == 200
        until.set()
        answers = [(await client.answer()).status for client in clients]
        assert set(answers) <= {401, 503}
        assert 401 in answers


async def test_a_valid_token_that_is_new_here_waits_for_a_place(place: Place) -> None:
    made = (await place.server.app.admin.create_token("new", ["publish:orders"])).token.encode()
    sent = request(b'{"key":"k","data":1}', b"authorization: Bearer " + made, path=PUBLISH)
    answers = await asyncio.gather(*(place.ask(sent) for _ in range(7)))
    assert [one.status for one in answers] == [200] * 7


async def test_strangers_sign_in_at_a_place_of_their_own() -> None:
    limits = Limits(Options(max_managed=2))
    async with AsyncExitStack() as stack:
        scopes = [{"client": (f"192.0.2.{number}", 1)} for number in range(3)]
        for scope in scopes:
            await limits.enter_as_stranger(scope)
        await stack.enter_async_context(limits.managing(scopes[0]))
        waiting = [asyncio.ensure_future(_manage(limits, scope)) for scope in scopes[1:]]
        for number in range(2):
            limits.admit(scope := {}, f"token{number}")
            await stack.enter_async_context(limits.managing(scope))
        assert not any(one.done() for one in waiting)
        await stack.aclose()
        await asyncio.gather(*waiting)


async def test_without_tokens_the_places_of_the_management_go_round_the_addresses() -> None:
    limits = Limits(Options(max_managed=2))
    hostile, calm = ({"client": (f"192.0.2.{number}", 1)} for number in range(2))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(limits.managing(hostile))
        waiting = asyncio.ensure_future(_manage(limits, hostile))
        await _manage(limits, calm)
        assert not waiting.done()
        await stack.aclose()
        await waiting


async def _manage(limits: Limits, scope: Any) -> None:
    async with limits.managing(scope):
        pass


async def test_an_unsigned_webhook_takes_small_deliveries_unless_it_says_otherwise(dsn: str) -> None:
    async with serving(dsn, Options()) as place:
        create = place.server.app.admin.create_source
        await create(WebhookSpec(name="wide", stream="orders", max_body=2_000_000))
        await create(WebhookSpec(name="signed", stream="orders", signature="github", secrets=("s",)))
        large = head(b"/v1/webhook/hook", 1_000_001)
        answer = await place.ask(large)
        assert (answer.status, answer.code) == (413, "too_large")
        assert b"max_body" in answer.body
        chunked = large.replace(b"content-length: 1000001", b"transfer-encoding: chunked")
        answer = await place.ask(chunked, b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
        assert (answer.status, answer.code) == (413, "too_large")
        for name, status in ((b"hook", 413), (b"wide", 200), (b"signed", 401)):
            body = b'"%b"' % (b"x" * 1_999_990)
            assert (await place.ask(request(body, path=b"/v1/webhook/" + name))).status == status, name


async def test_the_address_of_a_client_is_the_last_one_that_is_no_proxys() -> None:
    clients = Clients(("10.0.0.0/8", "::1"))
    for peer, forwarded, expected in (
        ("192.0.2.1", (), "192.0.2.1"),
        ("192.0.2.1", (b"198.51.100.1",), "192.0.2.1"),  # no proxy has sent it
        ("10.1.1.1", (), "10.1.1.1"),
        ("10.1.1.1", (b"198.51.100.1",), "198.51.100.1"),
        ("10.1.1.1", (b"6.6.6.6, 198.51.100.1, 10.2.2.2",), "198.51.100.1"),
        ("10.1.1.1", (b"6.6.6.6", b"198.51.100.1:4711"), "198.51.100.1"),
        ("::1", (b"[2001:db8::1]:4711",), "2001:db8::/64"),
        ("::1", (b"2001:db8::2",), "2001:db8::/64"),
        ("::ffff:10.1.1.1", (b"::ffff:198.51.100.1",), "198.51.100.1"),
        ("10.1.1.1", (b"unknown",), "10.1.1.1"),
        ("10.1.1.1", (b"6.6.6.6, nonsense",), "10.1.1.1"),
        ("10.1.1.1", (b"6.6.6.6," + b"10.0.0.1," * 5000 + b"10.0.0.1",), "10.0.0.1"),
        ("", (), ""),
        ("fe80::1%eth0", (), "fe80::/64"),
    ):
        scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", value) for value in forwarded]}
        assert clients.address_of(scope) == expected, (peer, forwarded)


async def test_the_share_of_strangers_ends_with_their_requests() -> None:
    limits = Limits(Options(max_requests=16, max_body=100, max_held=400))
    scopes: list[dict[str, Any]] = [{"client": ("192.0.2.1", 1), "headers": []} for _ in range(2)]
    await limits.enter_as_stranger(scopes[0])
    limits.begin()
    limits.hold_body(scopes[0], b"x" * 100)
    waits = asyncio.ensure_future(limits.enter_as_stranger(scopes[1]))
    await asyncio.sleep(0)
    assert not waits.done()
    limits.end(scopes[0])
    await waits
    limits.begin()
    limits.hold_body(scopes[1], b"x" * 100)
    with pytest.raises(Problem):
        limits.hold_body(scopes[1], b"x")
    limits.end(scopes[1])
    assert (limits.held, limits._held, limits._held_for_strangers) == (0, {}, 0)
    assert limits._strangers.owners == 0


async def test_an_address_has_a_share_of_the_connections_unless_many_clients_have_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(Options(max_connections=4, proxy_from=("10.0.0.0/8",)))
    for same in ("192.0.2.1", "2001:db8::1"):
        assert [limits.connected((same, port), 1) for port in range(4)] == [True, True, False, False]
        assert limits.connected(("198.51.100.1", 1), 1)
        for client in ((same, 1), (same, 2), (same, 3), (same, 4), ("198.51.100.1", 1)):
            limits.connected(client, -1)
    for shared in (("127.0.0.1", 1), ("::1", 1), ("10.1.1.1", 1), ("", 0), None):
        assert all(limits.connected(shared, 1) for _ in range(5))
    assert limits._connections == {}
    async with serving(dsn, Options(max_connections=4)) as place:
        monkeypatch.setattr(place.server.limits.clients, "connected_from", lambda _: "192.0.2.1")
        async with many(place.port, 2) as clients:
            for client in clients:
                assert (await client.ask(request(method=b"GET", path=b"/health"))).status == 200
            async with connected(place.port) as client:
                answer = await client.answer()
            assert (answer.status, answer.code) == (503, "too_many_connections")
            monkeypatch.setattr(place.server.limits.clients, "connected_from", lambda _: "198.51.100.1")
            assert (await place.ask(request(method=b"GET", path=b"/health"))).status == 200
