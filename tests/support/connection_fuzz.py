"""Fuzzing of a connection against a second reading of the same bytes.

A stream has requests with unique marks, in their paths and bodies, and requests hidden in their
bodies. It is mutated and sent in random pieces to a `Connection`. The requests that reach the application must be
those that `h11`, an independent and strict parser of HTTP/1.1, reads in these bytes, and each answer must carry
the mark of its request, in order. The connection may refuse more than `h11` does, and never read more.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.server.errors import error_response
from headrace.server.http import Response
from headrace.server.transport.exchange import Exchange
from headrace.server.transport.limits import Limits
from headrace.server.transport.protocol import connection_class
from tests.server.raw import limits

MAX_HEAD = 2000
MARK = b"x-mark"

_TURNS = 100
"""Largest number of turns of the event loop in which the requests of a stream are answered."""

_SPLICES = (
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b";", b",", b"0", b"1", b"0\r\n\r\n", b"\r\n\r\n", b"\x0b", b"\xff",
    b"Content-Length: 0\r\n", b"content-length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"transfer-encoding: identity\r\n",
    b"Transfer-Encoding : chunked\r\n", b"transfer-encoding:\tchunked\r\n", b"TRANSFER-ENCODING: CHUNKED\r\n",
    b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b"connection: close\r\n",
    b"connection: keep-alive\r\n", b"Host: other\r\n", b"expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b" HTTP/1.1",
    b"CONNECT ", b"HEAD ", b"GET ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"+", b"-", b"0x", b"x: y\r\n z\r\n", b"http://localhost",
)  # fmt: skip


_START_LINE = re.compile(rb"^([A-Z]+) +(\S+) +(HTTP/)")
_ORIGIN = re.compile(rb"^http://localhost(?=/)", re.IGNORECASE)


class Seen(NamedTuple):
    """A request as the application or `h11` reads it."""

    method: str
    target: str
    body: bytes


class Stream(NamedTuple):
    """The bytes of a client, where they are cut, and the requests if none was mutated."""

    data: bytes
    cuts: list[int]
    sound: list[Seen] | None


def streams(seed: int, count: int) -> Iterator[Stream]:
    """Yield random streams. The same seed yields the same ones."""
    source = random.Random(seed)
    for number in range(count):
        yield _stream(source, number)


def _stream(source: random.Random, number: int) -> Stream:
    requests = [_request(source, f"{number}-{place}") for place in range(source.randint(1, 3))]
    data = b"".join(text for text, _ in requests)
    mutated = source.random() < 0.9
    for _ in range(source.choice((1, 1, 1, 2, 3)) if mutated else 0):
        data = _mutate(source, data)
    cuts = sorted(
        {source.randrange(1, len(data)) for _ in range(source.choice((0, 0, 1, 2, 5)))} if len(data) > 1 else ()
    )
    return Stream(data, cuts, None if mutated else [seen for _, seen in requests])


def _request(source: random.Random, mark: str) -> tuple[bytes, Seen]:
    method = source.choice(("GET", "POST", "POST", "PUT", "DELETE"))
    hidden = f"GET /hidden-{mark} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    body = source.choice((b"", b"", mark.encode(), hidden, b"0\r\n\r\n" + hidden))
    lines = [f"{method} /{mark} HTTP/1.1".encode(), b"host: localhost"]
    if source.random() < 0.3:
        lines.append(source.choice((b"x-a: b", b"connection: keep-alive", b"accept: */*", b"upgrade: h2c")))
    end = body
    if body and source.random() < 0.5:
        lines.append(b"transfer-encoding: chunked")
        cut = source.randrange(len(body) + 1)
        pieces = [piece for piece in (body[:cut], body[cut:]) if piece]
        extension = source.choice((b"", b"", b";a=b"))
        end = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces) + b"0\r\n"
        end += source.choice((b"", b"", b"x-trailer: 1\r\n")) + b"\r\n"
    elif body or source.random() < 0.3:
        lines.append(b"content-length: %d" % len(body))
    source.shuffle(rest := lines[1:])
    return b"\r\n".join((lines[0], *rest)) + b"\r\n\r\n" + end, Seen(method, f"/{mark}", body)


def _mutate(source: random.Random, data: bytes) -> bytes:
    at = source.randrange(len(data) + 1)
    if source.random() < 0.6 and (ends := [place for place in range(len(data)) if data.startswith(b"\r\n", place)]):
        at = source.choice(ends) + source.choice((0, 0, 1, 2, 2))  # lines are what framing is made of
    match source.randrange(6):
        case 0:
            return data[:at] + bytes((source.randrange(256),)) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + source.randint(1, 4) :]
        case 2:
            end = min(len(data), at + source.randint(1, 60))
            return data[:end] + data[at:end] + data[end:]
        case _:
            return data[:at] + source.choice(_SPLICES) + data[at:]


def expected(data: bytes) -> list[Seen]:
    """Return the requests that `h11` reads in the bytes before it refuses them or expects more."""
    found: list[Seen] = []
    while True:
        reader = h11.Connection(h11.SERVER, max_incomplete_event_size=10 * MAX_HEAD)
        # The standard allows empty lines before a request, and more than one space in its line.
        reader.receive_data(_START_LINE.sub(rb"\1 \2 \3", data.lstrip(b"\r\n"), 1))
        reader.receive_data(b"")
        try:
            request = reader.next_event()
            if not isinstance(request, h11.Request) or request.method == b"CONNECT":  # no HTTP follows it
                return found
            body = bytearray()
            while isinstance(event := reader.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                return found
            # Without the parts of a target that the application doesn't see.
            target = _ORIGIN.sub(b"", request.target).partition(b"#")[0].removesuffix(b"?").decode("latin-1")
            found.append(Seen(request.method.decode(), target, bytes(body)))
            reader.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            reader.send(h11.EndOfMessage())
            if reader.our_state is not h11.DONE or reader.their_state is not h11.DONE:
                return found
            data = reader.trailing_data[0]
        except h11.RemoteProtocolError:
            return found


class Transport:
    """Records what is written, and whether the transport was closed."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


class Fuzzer:
    """Sends streams to connections of one server, without sockets."""

    def __init__(self) -> None:
        self._limits = limits(max_head=MAX_HEAD)
        self._seen: list[Seen] = []
        self._class = connection_class(self._limits, lambda: None, lambda method, path: self._answer)
        self._config = Config(
            self._limits.around(self._application), http=self._class, ws="none", lifespan="off", interface="asgi3",
            log_config=None, access_log=False, proxy_headers=False,
        )  # fmt: skip
        self._config.load()

    @property
    def limits(self) -> Limits:
        """The limits of the server, which count its refusals."""
        return self._limits

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self._limits.read_body(scope, receive)
            path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
            self._seen.append(Seen(scope["method"], path.decode("latin-1"), body))
            response = Response(200, b"", ((MARK, b"%d" % (len(self._seen) - 1)),))
        except Exception as error:
            response = error_response(error)
        await response.send(send)

    async def _answer(self, exchange: Exchange) -> None:
        """Answer a request that arrived in one piece, without ASGI."""
        self._limits.hold_body(exchange.scope, exchange.body)
        target = exchange.scope["raw_path"] + (b"?" + query if (query := exchange.scope["query_string"]) else b"")
        self._seen.append(Seen(exchange.scope["method"], target.decode("latin-1"), exchange.body))
        await exchange.respond(Response(200, b"", ((MARK, b"%d" % (len(self._seen) - 1)),)))

    async def send(self, stream: Stream) -> tuple[list[Seen], bytes]:
        """Send a stream to a new connection. Returns the requests that reached the application, and the answers."""
        self._seen = []
        state, transport, loop = ServerState(), Transport(), asyncio.get_running_loop()
        connection = self._class(self._config, state, {}, loop)
        connection.connection_made(transport)  # type: ignore[arg-type]
        for start, end in pairwise((0, *stream.cuts, len(stream.data))):
            if transport.closed:
                break
            connection.data_received(stream.data[start:end])
            await asyncio.sleep(0)
        for _ in range(_TURNS):
            if not state.tasks or (connection.cycle is not None and connection.cycle.more_body):
                break
            await asyncio.sleep(0)
        connection.connection_lost(None)
        while state.tasks:
            await asyncio.wait(state.tasks)
        return self._seen, bytes(transport.written)

    async def check(self, stream: Stream) -> int:
        """Send a stream and compare. Returns the number of its requests that were answered."""
        seen, written = await self.send(stream)
        if seen:
            found = expected(stream.data)
            assert seen == found[: len(seen)], (
                f"{seen} where h11 reads {found} in {stream.data!r}, cut at {stream.cuts}"
            )
        marks = [int(one.split(b"\r\n")[0]) for one in written.split(MARK + b": ")[1:]]
        assert marks == list(range(len(marks))), f"answers out of order to {stream.data!r}: {written!r}"
        assert len(marks) <= len(seen)
        if stream.sound is not None:
            assert seen == stream.sound, f"{seen} instead of {stream.sound} for {stream.data!r}, cut at {stream.cuts}"
            assert len(marks) == len(seen), f"{len(marks)} answers to {stream.data!r}"
        return len(marks)


async def fuzz(seed: int, count: int) -> int:
    """Check `count` streams. Returns the number of requests that were answered."""
    fuzzer = Fuzzer()
    answered = 0
    for stream in streams(seed, count):
        answered += await fuzzer.check(stream)
    return answered
