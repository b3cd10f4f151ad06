"""Requests that hide in others. Everything that a connection answers was sent as a separate request, and
an intermediary that reads the same bytes by the standard sees the same requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.server.asgi import Server
from headrace.server.errors import error_response
from headrace.server.http import Response
from headrace.server.options import Options
from tests.server.raw import Client, connected, limits, listening, request

pytestmark = pytest.mark.asyncio

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Place(NamedTuple):
    """A listener, and the method, path and body of every request that reached its application."""

    port: int
    seen: list[tuple[str, str, bytes]]


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    """A listener that records requests."""
    bounds = limits(max_head=2000, discard_time=0.1)
    seen: list[tuple[str, str, bytes]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await bounds.read_body(scope, receive)
            seen.append((scope["method"], scope["path"], body))
            response = Response(200, b"%d" % len(scope["headers"]))
        except Exception as error:
            response = error_response(error)
        await response.send(send)

    async with listening(application, bounds) as port:
        yield Place(port, seen)


async def _all(place: Place, *pieces: bytes) -> tuple[list[int], bytes]:
    """Send pieces, close the sending side, and return the statuses of all answers and their bytes."""
    async with connected(place.port) as client:
        await client.send(*pieces)
        client._writer.write_eof()
        text = await client.end()
    return [int(one[:3]) for one in text.split(b"HTTP/1.1 ")[1:]], text


UPGRADES = (
    b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: h2c\r\n",
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    b"upgrade: x\r\nconnection: close\r\nconnection: upgrade\r\n",
)


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("cut", [False, True], ids=["at-once", "in-pieces"])
async def test_the_body_of_an_upgrade_is_no_request(place: Place, cut: bool) -> None:
    for upgrade in UPGRADES:
        for head, body in (
            (b"content-length: %d\r\n" % len(SMUGGLED), SMUGGLED),
            (b"transfer-encoding: chunked\r\n", _chunked(SMUGGLED)),
            (b"transfer-encoding: chunked\r\n", SMUGGLED),
        ):
            for method in (b"POST", b"GET"):
                begin = method + b" /a HTTP/1.1\r\nhost: localhost\r\n" + upgrade + head + b"\r\n"
                statuses, text = await _all(place, *((begin, body) if cut else (begin + body,)))
                if b"h2c" not in upgrade:
                    assert statuses == [400], (upgrade, head, text)
                    assert b"connection: close" in text
                elif body == SMUGGLED and b"chunked" in head:  # broken
                    assert statuses == [], (upgrade, head, text)
                else:  # an offer of HTTP/2 is ignored (RFC 9110, 7.8), and the body read as the head says
                    assert statuses == [200], (upgrade, head, text)
    assert {(path, body) for _, path, body in place.seen} == {("/a", SMUGGLED)}


@pytest.mark.parametrize("cut", [False, True], ids=["at-once", "in-pieces"])
async def test_nothing_behind_an_upgrade_is_a_request(place: Place, cut: bool) -> None:
    for upgrade in UPGRADES:
        begin = b"GET /a HTTP/1.1\r\nhost: localhost\r\n" + upgrade + b"\r\n"
        statuses, text = await _all(place, *((begin, SMUGGLED) if cut else (begin + SMUGGLED,)))
        assert (statuses, b"connection: close" in text) == ([200], True), (upgrade, text)
    assert {path for _, path, _ in place.seen} == {"/a"}


async def test_an_offer_of_http2_is_ignored_and_what_follows_is_read_as_the_standard_says(place: Place) -> None:
    begin = b"POST /a HTTP/1.1\r\nhost: localhost\r\n"
    body = b"content-length: 2\r\n\r\nab"
    for upgrade in UPGRADES[1:3]:
        statuses, text = await _all(place, begin + upgrade + body + SMUGGLED)
        assert statuses == [200, 200]
        # A request that a proxy may read in another way is refused, as without the offer.
        for odd in (
            begin + upgrade.replace(b"h2c", b"h2c, websocket") + body,
            begin + upgrade + b"upgrade: h2c\r\n" + body,
            begin + upgrade + b"host: other\r\n" + body,
            begin + upgrade + b"content-length: 1\r\n" + body,
            begin + upgrade + b"transfer-encoding: chunked\r\n" + body,
        ):
            before = len(place.seen)
            statuses, text = await _all(place, odd + SMUGGLED)
            assert (statuses, b"connection: close" in text) == ([400], True), odd
            assert len(place.seen) == before


async def test_an_upgrade_behind_other_requests_closes_after_all_answers(place: Place) -> None:
    first = b"GET /first HTTP/1.1\r\nhost: localhost\r\n\r\n"
    upgrade = b"GET /a HTTP/1.1\r\nhost: localhost\r\n" + UPGRADES[0] + b"\r\n"
    statuses, _ = await _all(place, first + upgrade + SMUGGLED, SMUGGLED)
    assert statuses == [200, 200]
    assert [path for _, path, _ in place.seen] == ["/first", "/a"]


async def test_a_tunnel_is_refused(place: Place) -> None:
    for target in (b"localhost:80", b"/a", b"*"):
        statuses, _ = await _all(place, b"CONNECT " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\n" + SMUGGLED)
        assert statuses == [400], target
    assert place.seen == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a HTTP/1.1\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nhost: a\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nHost: b\r\n",
        b"GET /a HTTP/1.0\r\nhost: a\r\nhost: b\r\n",
        b"GET /a HTTP/1.1\r\nhost : a\r\n",
        b"GET /a HTTP/1.1\r\nx: y\r\n host: a\r\n",
        b"GET /a HTTP/0.9\r\n",
        b"GET /a HTTP/2.0\r\nhost: a\r\n",
        b"GET /a HTTP/1.2\r\nhost: a\r\n",
        b"GET /a\r\n",
        b"GET http://other/a HTTP/1.1\r\nhost: localhost\r\n",
        b"GET http://localhost@other/a HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 3\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3, 3\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: +3\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 0x3\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n",
        b"POST /a HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n",
    ],
)
async def test_what_intermediaries_may_read_otherwise_is_refused(place: Place, head: bytes) -> None:
    statuses, text = await _all(place, head + b"\r\n" + _chunked(b"abc") + SMUGGLED)
    assert statuses == [400], text
    assert place.seen == []


async def test_one_host_and_the_same_in_an_absolute_target_are_answered(place: Place) -> None:
    for head in (
        b"GET /a HTTP/1.1\r\nhost: localhost:80\r\n\r\n",
        b"GET http://LOCALHOST:80/a HTTP/1.1\r\nhost: localhost:80\r\n\r\n",
        b"GET /a HTTP/1.0\r\n\r\n",
    ):
        statuses, text = await _all(place, head)
        assert statuses == [200], text
    assert [path for _, path, _ in place.seen] == ["/a"] * 3


async def test_trailers_are_no_headers_and_are_bounded(place: Place) -> None:
    begin = b"POST /a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
    statuses, text = await _all(place, begin, b"authorization: Bearer x\r\nhost: b\r\n\r\n")
    assert (statuses, text[-1:]) == ([200], b"2")  # its two headers
    for trailer in (b"x: y\r\n" * 1000, b"x: " + b"y" * 6000, b"y" * 6000):
        pieces = [trailer[at : at + 100] for at in range(0, len(trailer), 100)]
        async with connected(place.port) as client:
            await client.send(begin, *pieces)
            assert (await client.end()) == b""  # its request was not complete, so there is no answer
    assert len(place.seen) == 1


async def test_the_extensions_of_chunks_are_bounded(place: Place) -> None:
    begin = b"POST /a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n3;"
    async with connected(place.port) as client:
        await client.send(begin, *[b"x" * 100 for _ in range(60)])
        assert (await client.end()) == b""
    assert place.seen == []


async def test_a_server_reads_no_tokens_for_a_smuggler(dsn: str) -> None:
    """The case that was found: the server itself, with the body of an upgrade that lists the tokens."""
    app = App(dsn)
    server = Server(app, Options(discard_time=0.1))
    hidden = b"GET /v1/tokens HTTP/1.1\r\nhost: localhost\r\n\r\n"
    begin = (
        b"POST /v1/streams HTTP/1.1\r\nhost: localhost\r\n" + UPGRADES[0] + b"content-length: %d\r\n\r\n" % len(hidden)
    )
    async with app.running(), listening(server, server.limits) as port, connected(port) as client:
        assert isinstance(client, Client)
        await client.send(begin)
        await asyncio.sleep(0)
        await client.send(hidden)
        text = await client.end()
    assert text.startswith(b"HTTP/1.1 400 ")
    assert text.count(b"HTTP/1.1 ") == 1


async def test_two_authorization_headers_are_refused(dsn: str) -> None:
    """A proxy may have checked the other one."""
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(allowed_hosts=("headrace",)))
    async with app.running(), listening(server, server.limits) as port:
        good = (await app.admin.create_token("shop", ["publish:orders"])).token.encode()
        for first, second in ((good, b"hr_x"), (b"hr_x", good), (good, good)):
            headers = [b"authorization: Bearer " + first, b"Authorization: Bearer " + second]
            body = b'{"key":"k","data":1}'
            async with connected(port) as client:
                answer = await client.ask(request(body, *headers, path=b"/v1/streams/orders/messages"))
            assert (answer.status, answer.code) == (400, "malformed"), (first, second)
        # Under another web server, which accepts two.
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url="http://headrace") as mounted:
            twice = [("authorization", f"Bearer {good.decode()}")] * 2
            for path in ("/v1/me", "/v1/streams/orders", "/metrics"):
                assert (await mounted.get(path, headers=twice)).status_code == 400, path
