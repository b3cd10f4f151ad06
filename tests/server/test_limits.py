"""Limits: too large, too slow or too many requests are refused immediately, at no further cost, and do no
harm to others.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.server.errors import Problem
from headrace.server.http import Response
from headrace.server.options import Options
from headrace.server.transport.incoming_bodies import IncomingBody
from headrace.server.transport.limits import Limits, replay
from tests.server.raw import connected, echo, limits, listening, request

pytestmark = pytest.mark.asyncio


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_sent() -> None:
    bounds = limits(max_body=100)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        answer = await client.ask(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 101\r\n\r\n")
        assert (answer.status, answer.code) == (413, "too_large")
        # A client that sends the body nevertheless gets an answer, and can continue.
        await client.send(b"x" * 101)
        assert (await client.ask(request(b"y" * 100))).body == b"100"
    assert bounds.refused == {413: 1}


async def test_a_body_in_chunks_is_refused_where_it_becomes_too_large() -> None:
    bounds = limits(max_body=100)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        assert (await client.ask(head, b"32\r\n" + b"x" * 50 + b"\r\n", b"0\r\n\r\n")).body == b"50"
        answer = await client.ask(head, *[b"32\r\n" + b"x" * 50 + b"\r\n"] * 3)
        assert (answer.status, answer.code) == (413, "too_large")
    assert bounds.held == 0


async def test_a_client_that_goes_on_sending_what_was_refused_is_cut_off() -> None:
    bounds = limits(max_body=100, discard_time=0.05)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        answer = await client.ask(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n")
        assert answer.status == 413
        await client.send(b"x")
        assert await client.end() == b""


async def test_a_body_that_does_not_come_is_given_up() -> None:
    bounds = limits(body_timeout=0.05, body_check_interval=0.01, discard_time=0.05)
    async with listening(echo(bounds), bounds) as port, connected(port) as client:
        answer = await client.ask(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n", b"123")
        assert (answer.status, answer.code) == (408, "too_slow")
        assert await client.end() == b""
    assert (bounds.under_way, bounds.held) == (0, 0)


class _Clock:
    """The parts of an event loop that reading a body needs."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


async def _late_after(pieces: list[tuple[float, int]], timeout: float = 10.0) -> float | None:
    """Return when a body in pieces, each after a delay in seconds, is refused as too slow, or None if it never is."""
    clock = _Clock()

    async def read() -> float | None:
        incoming = IncomingBody(clock, timeout, Options().min_body_rate)  # type: ignore[arg-type]
        for pause, size in pieces:
            for _ in range(round(pause * 2)):
                clock.now += 0.5
                incoming.check(clock.now)
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    assert incoming.was_late()
                    return clock.now - 100.0
            incoming.add(size)
        return None

    return await asyncio.create_task(read())


async def test_a_body_may_pause_for_as_long_as_a_piece_may_take() -> None:
    assert await _late_after([(9.5, 50_000), (9.5, 50_000), (9.5, 1)]) is None
    assert await _late_after([(9.5, 50_000), (20, 1)]) == 20.0


async def test_a_body_that_trickles_is_given_up_though_it_never_pauses() -> None:
    late = await _late_after([(1.0, 10)] * 60)
    assert late is not None
    assert 20.0 < late <= 21.5
    assert await _late_after([(1.0, 2 * Options().min_body_rate)] * 60) is None


async def test_empty_pieces_are_no_progress() -> None:
    assert await _late_after([(1.0, 0)] * 60) == 10.5


async def test_a_cancellation_from_outside_stays_a_cancellation() -> None:
    bounds = limits()
    waits = asyncio.Event()

    async def receive() -> Any:
        waits.set()
        await asyncio.Event().wait()

    reading = asyncio.create_task(bounds.read_body({"headers": []}, receive))
    await waits.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_client_that_goes_away_in_mid_body_leaves_nothing_behind() -> None:
    bounds = limits()
    done = asyncio.Event()
    inner = echo(bounds)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        done.set()

    async with listening(application, bounds) as port:
        async with connected(port) as client:
            await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n", b"x" * 500)
        async with asyncio.timeout(10):
            await done.wait()
        await asyncio.sleep(0)
    assert (bounds.under_way, bounds.held) == (0, 0)


class _Gate:
    """An application that holds its requests until the gate opens."""

    def __init__(self, bounds: Limits, *, waiting: bool = False) -> None:
        self._bounds = bounds
        self._waiting = waiting
        self._inside = asyncio.Semaphore(0)
        self._opens = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._bounds.read_body(scope, receive)
        self._inside.release()
        if self._waiting:
            with self._bounds.wait():
                await self._opens.wait()
        else:
            await self._opens.wait()
        await Response(200, b"{}").send(send)

    async def until(self, count: int) -> None:
        """Wait until this many more requests are inside."""
        async with asyncio.timeout(10):
            for _ in range(count):
                await self._inside.acquire()

    def open(self) -> None:
        self._opens.set()


async def test_more_requests_than_may_be_under_way_are_asked_to_try_again() -> None:
    bounds = limits(max_requests=2)
    gate = _Gate(bounds)
    async with (
        listening(gate, bounds) as port,
        connected(port) as first,
        connected(port) as second,
        connected(port) as third,
    ):
        await first.send(request())
        await second.send(request())
        await gate.until(2)
        answer = await third.ask(request(b"{}"))
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_requests_under_way", "1")
        gate.open()
        assert (await first.answer()).status == (await second.answer()).status == 200
        assert (await third.ask(request(b"{}"))).status == 200
    assert bounds.under_way == 0


async def test_requests_that_wait_for_messages_count_apart() -> None:
    bounds = limits(max_requests=1)
    gate = _Gate(bounds, waiting=True)
    async with listening(gate, bounds) as port, connected(port) as first, connected(port) as second:
        await first.send(request())
        await gate.until(1)
        await second.send(request())
        await gate.until(1)
        assert (bounds.under_way, bounds.waiting) == (0, 2)
        gate.open()
        assert (await first.answer()).status == (await second.answer()).status == 200
    assert (bounds.under_way, bounds.waiting) == (0, 0)


async def test_the_bodies_under_way_are_bounded_together() -> None:
    bounds = limits(max_held=150, max_body=150)
    gate = _Gate(bounds)
    async with listening(gate, bounds) as port, connected(port) as first:
        await first.send(request(b"x" * 100))
        await gate.until(1)
        assert bounds.held == 100
        with pytest.raises(Problem) as caught:
            await bounds.read_body({"headers": []}, replay(b"y" * 51, first.answer))  # type: ignore[arg-type]
        assert (caught.value.status, caught.value.code) == (503, "too_much_under_way")
        scope: dict[str, Any] = {"headers": []}
        assert await bounds.read_body(scope, replay(b"y" * 50, first.answer)) == b"y" * 50  # type: ignore[arg-type]
        gate.open()
        assert (await first.answer()).status == 200
    assert bounds.held == 50


async def test_a_replayed_body_is_followed_by_what_follows() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    received = replay(b"{}", receive)
    assert await received() == {"type": "http.request", "body": b"{}", "more_body": False}
    assert await received() == {"type": "http.disconnect"}
