"""Limits of connections: large or slow heads, silent clients, clients that do not read, and too many clients."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headrace.server.http import SEND_RESPONSE, Response
from headrace.server.options import Options
from headrace.server.transport.limits import Limits
from tests.server.raw import connected, echo, limits, listening, request

pytestmark = pytest.mark.asyncio


async def test_a_request_is_answered_and_the_connection_goes_on() -> None:
    bounds = limits()
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        for size in (0, 10, 100_000):
            answer = await client.ask(request(b"x" * size))
            assert (answer.status, answer.body) == (200, b"%d" % size)
            assert "date" in answer.headers


async def test_a_head_may_come_in_pieces() -> None:
    bounds = limits(max_head=1000)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        whole = request(b"x" * 5000, b"x-long: " + b"y" * 800)
        for _ in range(2):
            answer = await client.ask(*(whole[place : place + 7] for place in range(0, len(whole), 7)))
            assert answer.body == b"5000"


@pytest.mark.parametrize("piece", [100, 1_000_000])
async def test_a_head_that_is_too_large_is_refused(piece: int) -> None:
    bounds = limits(max_head=1000)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        whole = request(b"", b"x-long: " + b"y" * 1000)
        answer = await client.ask(*(whole[place : place + piece] for place in range(0, len(whole), piece)))
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert await client.end() == b""
    assert bounds.refused == {431: 1}


async def test_a_head_that_never_ends_is_refused() -> None:
    bounds = limits(max_head=1000)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        answer = await client.ask(b"GET /", *[b"y" * 500] * 3)
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert await client.end() == b""


async def test_too_many_headers_are_refused() -> None:
    bounds = limits(max_headers=20)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        assert (await client.ask(request(b"", *[b"a: b"] * 18))).status == 200
        answer = await client.ask(request(b"", *[b"a: b"] * 19))
        assert (answer.status, answer.code) == (431, "headers_too_large")


async def test_a_slow_head_is_given_up_however_steadily_it_comes() -> None:
    bounds = limits(head_timeout=0.1)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        await client.send(b"GET / HTTP/1.1\r\n")
        answering = asyncio.create_task(client.answer())
        while not answering.done():
            await client.send(b"x: y\r\n")
            await asyncio.sleep(0.02)
        answer = await answering
        assert (answer.status, answer.code) == (408, "too_slow")
        assert await client.end() == b""
        assert (bounds.under_way, bounds.refused) == (0, {408: 1})


async def test_a_head_on_an_old_connection_has_its_time_from_its_first_byte_on() -> None:
    bounds = limits(head_timeout=1.0, idle_timeout=1000)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        assert (await client.ask(request())).status == 200
        await asyncio.sleep(1.2)  # longer than a head may take, but idle connections are allowed
        assert (await client.ask(request())).status == 200
        answer = await client.ask(b"GET / HTTP/1.1\r\n")
        assert answer.status == 408


async def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    bounds = limits(head_timeout=0.05)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        assert await client.end() == b""
    assert bounds.refused == {}


async def test_empty_lines_are_no_request() -> None:
    bounds = limits(head_timeout=1.0)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        assert (await client.ask(request())).status == 200
        ended = asyncio.create_task(client.end())
        while not ended.done():
            await client.send(b"\r\n")
            await asyncio.sleep(0.05)
        assert await ended == b""


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    bounds = limits(idle_timeout=0.05)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        assert (await client.ask(request())).status == 200
        assert await client.end() == b""
    assert bounds.refused == {}


async def test_what_is_not_http_is_refused() -> None:
    bounds = limits()
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        answer = await client.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        assert (answer.status, answer.code) == (400, "malformed")


async def test_an_upgrade_is_not_taken_and_the_request_answered() -> None:
    bounds = limits()
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        upgrade = (b"connection: upgrade", b"upgrade: websocket")
        assert (await client.ask(request(b"", *upgrade, method=b"GET"))).status == 200


async def test_one_connection_over_the_limit_is_refused() -> None:
    bounds = limits(max_connections=2)
    async with listening(echo(bounds), bounds) as port, AsyncExitStack() as stack:
        first = await stack.enter_async_context(connected(port))
        second = await stack.enter_async_context(connected(port))
        for client in (first, second):
            assert (await client.ask(request())).status == 200
        async with connected(port) as third:
            answer = await third.ask(request())
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_connections", "1")
            assert await third.end() == b""
        for client in (first, second):
            assert (await client.ask(request())).status == 200


async def test_requests_sent_ahead_are_answered_in_turn() -> None:
    bounds = limits()
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        await client.send(b"".join(request(b"x" * size) for size in range(50)))
        assert [(await client.answer()).body for _ in range(50)] == [b"%d" % size for size in range(50)]


async def test_only_so_many_requests_may_be_sent_ahead() -> None:
    bounds = limits()
    entered, opens = asyncio.Event(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await opens.wait()
        await Response(200, b"{}").send(send)

    async with listening(application, bounds) as port, connected(port) as client:
        await client.send(request(method=b"GET") * (Options().max_pipelined + 2))
        await entered.wait()
        opens.set()
        for _ in range(Options().max_pipelined + 1):  # earlier answers come before the error
            assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.end() == b""
        assert bounds.refused == {400: 1}


def _large(bounds: Limits, size: int) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await bounds.read_body(scope, receive)
        await Response(200, b"x" * size).send(send)

    return application


async def test_a_client_that_does_not_take_its_answer_is_cut_off() -> None:
    bounds = limits(write_timeout=0.1)
    size = 50_000_000
    async with listening(_large(bounds, size), bounds) as port, connected(port) as client:
        await client.send(request())
        for _ in range(40):  # it reads nothing meanwhile. Each pause lets the server look, however slow the machine is
            await asyncio.sleep(0.02)
        assert len(await client.end()) < size


async def test_a_client_that_takes_its_answer_slowly_gets_it_all() -> None:
    bounds = limits(write_timeout=0.1)
    size = 20_000_000
    async with listening(_large(bounds, size), bounds) as port, connected(port) as client:
        await client.send(request())
        reader = client._reader
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        taken = 0
        while taken < size:
            piece = await reader.read(4_000_000)
            assert piece
            taken += len(piece)
            await asyncio.sleep(0)


async def test_answers_that_a_client_does_not_take_do_not_pile_up() -> None:
    bounds = limits(write_timeout=1000)
    size, answered = 2_000_000, 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        response = Response(200, b"x" * size)
        if not scope[SEND_RESPONSE](response):
            await response.send(send)
        answered += 1

    async with listening(application, bounds) as port, connected(port) as client:
        await client.send(request(method=b"GET") * 50)
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert answered < 10  # what the kernel buffers, and what is in transit
        for _ in range(50):
            assert len((await client.answer()).body) == size
    assert answered == 50
