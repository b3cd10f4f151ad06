"""Heads that were parsed before are looked up, and mean the same as when they are parsed."""

from __future__ import annotations

import asyncio

import pytest

from headrace.server.http import Response
from headrace.server.transport import heads
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.heads import Head, KnownHeads
from tests.server.raw import connected, limits, request
from tests.server.test_exchanges import listening

pytestmark = pytest.mark.asyncio


async def told(exchange: Exchange) -> None:
    """Answer with what the request says."""
    scope = exchange.scope
    text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {scope['client'][1]} {exchange.body.decode()}"
    await exchange.respond(Response(200, f'"{text}"'.encode()))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the head of each piece of input between two requests was known."""
    results: list[bool] = []
    real = KnownHeads.find

    def find(self: KnownHeads, data: bytes) -> tuple[Head, bytes] | None:
        known = real(self, data)
        results.append(known is not None)
        return known

    monkeypatch.setattr(KnownHeads, "find", find)
    return results


async def test_a_known_head_is_answered_as_when_it_was_parsed(found: list[bool]) -> None:
    bounds = limits()
    async with listening(bounds, told) as port, connected(port) as client, connected(port) as other:
        answers = [await one.ask(request(b, path=b"/direct?a=b")) for one in (client, other) for b in (b"123", b"456")]
        ports = [answer.body.split()[3] for answer in answers]
        assert ports[0] == ports[1] != ports[2] == ports[3]
        assert [answer.body.split()[4] for answer in answers] == [b'123"', b'456"'] * 2
        assert all(answer.body.startswith(b'"POST /direct a=b ') for answer in answers)
    assert found == [False, True, True, True]


async def test_a_known_head_with_less_or_more_behind_it_is_parsed(found: list[bool]) -> None:
    async with listening(limits(), told) as port, connected(port) as client:
        whole = request(b"12345", path=b"/direct")
        await client.ask(whole)
        await client.send(whole[:-2])  # answered by ASGI, since the body comes in two pieces
        async with connected(port) as other:
            await other.ask(request())
        assert (await client.ask(whole[-2:])).body == b"5"
        await client.send(whole + request(b"1"))
        assert (await client.answer()).body.endswith(b' 12345"')
        assert (await client.answer()).body == b"1"
        assert (await client.ask(whole)).body.endswith(b' 12345"')
    assert found[-1]


async def test_what_began_with_another_piece_is_not_taken_for_a_known_head(found: list[bool]) -> None:
    async with listening(limits(), told) as port, connected(port) as client:
        whole = request(b"", path=b"/direct")
        await client.ask(whole)
        count = len(found)
        await client.send(b"POST /direct HTTP/1.1\r\nhost: a\r\naccept: ")
        async with connected(port) as other:
            await other.ask(request(path=b"/other"))
        count = len(found)
        answer = await client.ask(whole)  # the value of a header, and further headers
        assert answer.status == 400
    assert len(found) == count


async def test_requests_with_a_known_head_sent_ahead_are_answered_in_their_order() -> None:
    release = asyncio.Event()

    async def later(exchange: Exchange) -> None:
        await release.wait()
        await told(exchange)

    async with listening(limits(), later) as port, connected(port) as client:
        whole = request(b"1", path=b"/direct")
        release.set()
        await client.ask(whole)
        release.clear()
        await client.send(whole)
        async with connected(port) as other:
            await other.ask(request())
        await client.send(request(b"2", path=b"/direct"))  # known, but the request before it is not answered
        async with connected(port) as other:
            await other.ask(request())
        release.set()
        assert (await client.answer()).body.endswith(b' 1"')
        assert (await client.answer()).body == b"1"  # by ASGI, which says the size of the body


async def test_a_head_that_ends_its_connection_is_not_remembered() -> None:
    async with listening(limits(), told) as port:
        for _ in range(2):
            async with connected(port) as client:
                answer = await client.ask(request(b"1", b"connection: close", path=b"/direct"))
                assert answer.headers["connection"] == "close"
                assert await client.end() == b""


async def test_the_number_and_the_size_of_remembered_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_HEADS", 3)
    known = KnownHeads()

    async def answer(_: Exchange) -> None: ...

    head = Head(answer, {"method": "GET", "query_string": b"", "headers": []})
    for number in range(10):
        known.add(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number, head, b"")
        assert known.find(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number) == (head, b"")
    assert sum(known.find(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % number) is not None for number in range(10)) <= 3
    long = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n" % (b"a" * heads.MAX_HEAD)
    known.add(long, head, b"")
    assert known.find(long) is None
    known.add(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n12\r\n", head, b"12")  # more than the request
    assert known.find(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n12") is None


async def test_a_body_that_looks_like_a_known_request_is_a_body(found: list[bool]) -> None:
    async with listening(limits(), told) as port, connected(port) as client, connected(port) as other:
        known = request(b"12345", path=b"/direct")
        await client.ask(known)
        await client.send(request(known, path=b"/direct").removesuffix(known))
        await other.ask(request())  # once it is answered, the head before has been read
        count = len(found)
        assert (await client.ask(known)).body == b"%d" % len(known)
        assert len(found) == count


async def test_a_known_head_with_a_body_that_ends_in_another_way_is_parsed() -> None:
    chunks = b"5\r\n12345\r\n0\r\n\r\n"
    async with listening(limits(), told) as port, connected(port) as client, connected(port) as other:
        whole = request(chunks, path=b"/direct")
        length = b"content-length: %d\r\n" % len(chunks)
        coding = b"transfer-encoding: chunked\r\n"
        for _ in range(2):
            assert (await client.ask(whole)).body.startswith(b'"POST /direct')
            assert (await client.ask(whole.replace(length, coding))).body == b"5"
        assert (await other.ask(whole.replace(length, length + coding))).status == 400
        assert await other.end() == b""
