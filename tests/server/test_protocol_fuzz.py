"""Random bytes in random pieces on a connection. Each request is answered or refused, once and in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.server.http import Response
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.protocol import connection_class
from tests.server.raw import echo, limits, request

MAX_HEAD = 500

_token = st.sampled_from(
    [b"a", b"x-y", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"expect", b"host"]
)
_value = st.one_of(
    st.sampled_from([b"chunked", b"close", b"upgrade", b"websocket", b"5", b"-1", b"99999999999999999999", b"100-continue", b""]),
    st.binary(max_size=20),
)  # fmt: skip
_sound = st.builds(request, st.binary(max_size=200))
_chunked = st.lists(st.binary(min_size=1, max_size=50), max_size=5).map(
    lambda pieces: b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    + b"0\r\n\r\n"
)  # fmt: skip
_odd = st.lists(st.tuples(_token, _value), max_size=8).map(
    lambda headers: b"POST /p HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n"
)
_large = st.integers(400, 700).map(lambda size: request(b"", b"x: " + b"y" * size))


class Transport:
    """Records what is written, and whether the transport was closed."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


async def _answer(exchange: Exchange) -> None:
    await exchange.respond(Response(200, b"%d" % len(exchange.body)))


async def _say(data: bytes, cuts: list[int]) -> tuple[Transport, dict[int, int]]:
    """Return the answer to the bytes, cut at these places, and the refusals."""
    bounds = limits(max_head=MAX_HEAD, max_headers=10)
    config = Config(
        bounds.around(echo(bounds)), http=connection_class(bounds, lambda: None), ws="none", lifespan="off",
        interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
    )  # fmt: skip
    config.load()
    state, transport, loop = ServerState(), Transport(), asyncio.get_running_loop()
    direct = connection_class(bounds, lambda: None, lambda method, path: _answer)
    connection = direct(config, state, {}, loop)
    connection.connection_made(transport)  # type: ignore[arg-type]
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    for start, end in pairwise(places):
        if transport.closed:
            break
        connection.data_received(data[start:end])
        for _ in range(3):
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    while state.tasks:
        await asyncio.wait(state.tasks)
    assert (bounds.under_way, bounds.held, state.connections) == (0, 0, set())
    return transport, bounds.refused


@settings(max_examples=75)
@given(st.lists(st.one_of(_sound, _chunked), min_size=1, max_size=5), st.lists(st.integers(0, 1500), max_size=20))
def test_sound_requests_are_answered_each_once(requests: list[bytes], cuts: list[int]) -> None:
    transport, refused = asyncio.run(_say(b"".join(requests), cuts))
    assert transport.written.count(b"HTTP/1.1 200 OK\r\n") == len(requests)
    assert (transport.closed, refused) == (True, {})  # connection_lost closes it


@settings(max_examples=125)
@given(
    st.lists(st.one_of(_sound, _chunked, _odd, _large, st.binary(max_size=300)), min_size=1, max_size=5),
    st.lists(st.integers(0, 2000), max_size=20),
)
def test_anything_is_answered_or_refused(pieces: list[bytes], cuts: list[int]) -> None:
    transport, refused = asyncio.run(_say(b"".join(pieces), cuts))
    for status in (b"500", b"503"):
        assert b"HTTP/1.1 " + status not in transport.written
    assert sum(refused.values()) <= 1 + len(pieces)


@settings(max_examples=50)
@given(st.integers(300, 700), st.lists(st.integers(0, 800), max_size=20))
def test_a_head_is_judged_by_its_size_however_it_is_cut(size: int, cuts: list[int]) -> None:
    whole = request(b"", b"x: " + b"y" * size)
    transport, refused = asyncio.run(_say(whole, cuts))
    if len(whole) <= MAX_HEAD:
        assert (b" 200 OK" in transport.written, refused) == (True, {})
    elif len(whole) > MAX_HEAD + 50:  # the path alone exceeds the limit of the request line
        assert (b" 431 " in transport.written, refused) == (True, {431: 1})
