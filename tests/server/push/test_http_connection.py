"""How a connection reads the bytes that an endpoint sends."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.push import http_client, http_connection
from headrace.server.push.addresses import AllowedAddresses
from headrace.server.push.http_client import IDLE_TIMEOUT, PushClients
from headrace.server.push.http_connection import MAX_BODY, MAX_HEAD, HttpConnection, RequestFailed, Response
from headrace.server.push.target import Target
from tests.support.cycles import no_cycles

BUSY = b"HTTP/1.1 503 Too Busy\r\nRetry-After: 7\r\nX-Other: 1\r\n"
RESPONSES = {
    "with a length": BUSY + b"Content-Length: 5\r\n\r\nlater",
    "chunked": BUSY + b"Transfer-Encoding: chunked\r\n\r\n2\r\nla\r\n3\r\nter\r\n0\r\n\r\n",
    "after interim ones": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hint\r\nlocation: /\r\n\r\n"
    + (BUSY + b"Content-Length: 5\r\n\r\nlater"),
}


class Wire:
    """The other end of a connection, as its transport."""

    def __init__(self) -> None:
        self.written = b""
        self.unsent = 0
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


async def exchange(*parts: bytes, unsent: int = 0, ends: bool = False) -> tuple[Response | Exception, HttpConnection]:
    """Make a request, and answer with these parts, and then with the end of the connection. The clock stands still."""
    wire, connection = Wire(), HttpConnection()
    wire.unsent = unsent
    connection.connection_made(wire)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(connection.post(b"POST", 60.0))
    await asyncio.sleep(0)
    for part in parts:
        connection.data_received(part)
    if ends:
        connection.connection_lost(None)
    (answer,) = await asyncio.gather(asking, return_exceptions=True)
    assert not isinstance(answer, BaseException) or isinstance(answer, Exception)
    assert connection.reusable == (not wire.aborted)
    return answer, connection


@given(st.sampled_from(sorted(RESPONSES)), st.lists(st.integers(0, 200), max_size=6))
def test_a_response_is_the_same_however_it_is_cut(name: str, places: list[int]) -> None:
    text = RESPONSES[name]
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    parts = [text[first:last] for first, last in pairwise(cuts)]
    answer, connection = asyncio.run(exchange(*parts))
    assert answer == Response(503, "Too Busy", {"retry-after": "7"}, b"later")
    assert connection.reusable


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "surplus",
    [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"garbage", b"H"],
    ids=["a response", "garbage", "a byte"],
)
async def test_what_comes_after_a_response_is_no_answer_to_the_next_request(surplus: bytes) -> None:
    answer, connection = await exchange(RESPONSES["with a length"] + surplus)
    assert isinstance(answer, Response)
    assert answer.status == 503
    assert not connection.reusable
    answer, connection = await exchange(RESPONSES["with a length"])
    connection.data_received(surplus)
    assert not connection.reusable


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "parts", [(), (b"garbage",), (RESPONSES["with a length"],)], ids=["none", "garbage", "a response"]
)
async def test_a_connection_that_has_ended_leaves_no_reference_cycle(parts: tuple[bytes, ...]) -> None:
    with no_cycles():
        await exchange(*parts, ends=True)
        await asyncio.sleep(0)  # the event loop still has what this task was waiting for


@pytest.mark.asyncio
async def test_a_request_that_was_not_sent_as_a_whole_is_not_followed_by_another() -> None:
    answer, connection = await exchange(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", unsent=1)
    assert answer == Response(413, "Too Large", {}, b"")
    assert not connection.reusable


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
     b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
     b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % (10 * MAX_BODY) + b"x" * 2 * MAX_BODY],
    ids=["close", "HTTP 1.0", "upgrade", "broken body", "large body"],
)  # fmt: skip
async def test_a_status_counts_and_the_connection_is_not_used_again(text: bytes) -> None:
    answer, connection = await exchange(text)
    assert isinstance(answer, Response)
    assert answer.status == int(text.split()[1])
    assert len(answer.body) <= MAX_BODY
    assert not connection.reusable


@pytest.mark.asyncio
async def test_the_end_of_the_connection_ends_a_body_without_a_length() -> None:
    answer, _ = await exchange(b"HTTP/1.1 500 No\r\n\r\nbecause", ends=True)
    assert answer == Response(500, "No", {}, b"because")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("parts", "why"),
    [((), "closed the connection"), ((b"HTTP/1.1 20",), "closed the connection"), ((b"SSH-2.0\r\n",), "invalid"),
     ((b"HTTP/1.1 200 OK\r\n", *[b"x: %b\r\n" % (b"y" * 1000)] * (MAX_HEAD // 1000)), "too large a head")],
    ids=["nothing", "a part", "another protocol", "endless headers"],
)  # fmt: skip
async def test_what_is_no_response_fails(parts: tuple[bytes, ...], why: str) -> None:
    error, connection = await exchange(*parts, ends=True)
    assert isinstance(error, RequestFailed)
    assert why in str(error)
    assert not connection.reusable


@pytest.mark.asyncio
async def test_a_body_that_dribbles_after_2xx_ends_at_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "BODY_TIMEOUT", 0.0)
    wire, connection = Wire(), HttpConnection()
    connection.connection_made(wire)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(connection.post(b"POST", 60.0))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na")
    while not asking.done():
        connection.data_received(b"")  # which must not restart the limit
        await asyncio.sleep(0)
    assert asking.result() == Response(200, "OK", {}, b"")
    assert wire.aborted


@pytest.mark.asyncio
async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    wire, connection = Wire(), HttpConnection()
    connection.connection_made(wire)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(connection.post(b"POST", 60.0))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    connection.data_received(RESPONSES["chunked"])
    assert wire.aborted


@pytest.mark.asyncio
async def test_a_connection_that_was_idle_for_long_or_was_closed_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    client = PushClients(AllowedAddresses()).open(1)
    wires = [Wire() for _ in range(3)]
    old, closed, last = connections = [HttpConnection() for _ in wires]
    for wire, connection in zip(wires, connections, strict=True):
        connection.connection_made(wire)  # type: ignore[arg-type]
        connection.idle_since = asyncio.get_running_loop().time()
    old.idle_since -= IDLE_TIMEOUT
    for connection in connections:
        client.give_back(connection)
    closed.connection_lost(None)
    assert client.idle() is last
    assert client.idle() is None
    assert wires[0].aborted
    client.give_back(last)
    last.idle_since -= IDLE_TIMEOUT
    client._sweep()
    assert wires[2].aborted
    client.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A self-signed certificate for localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    certificate, key = str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.mark.process
@pytest.mark.asyncio
async def test_an_endpoint_is_only_sent_to_if_its_certificate_is_valid(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(RESPONSES["chunked"])

    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving)
    port = server.sockets[0].getsockname()[1]
    client = PushClients(AllowedAddresses(["loopback"])).open(1)
    with pytest.raises(ssl.SSLCertVerificationError):
        await client.connect(Target.of(f"https://localhost:{port}/", {}))
    monkeypatch.setattr(http_client, "_tls", lambda: ssl.create_default_context(cafile=certificate[0]))
    with pytest.raises(ssl.SSLCertVerificationError):  # it is for another name
        await client.connect(Target.of(f"https://127.0.0.1:{port}/", {}))
    target = Target.of(f"https://LOCALHOST.:{port}/", {})
    connection = await client.connect(target)
    response = await connection.post(target.request({}, b"{}"), 10)
    assert (response.status, connection.reusable) == (503, True)
    client.give_back(connection)
    client.close()
    server.close()


@pytest.mark.parametrize(
    ("url", "host", "line"),
    [("http://a", "a", b"POST / HTTP/1.1\r\nhost: a\r\n"), ("https://a:8443/x?y=z#f", "a", b"POST /x?y=z HTTP/1.1\r\nhost: a:8443\r\n"),
     ("http://[2606:4700::1]:80/", "2606:4700::1", b"POST / HTTP/1.1\r\nhost: [2606:4700::1]\r\n"),
     ("https://gr\u00fcn.example/\u00fc?\u00fc", "xn--grn-ioa.example", b"POST /%C3%BC?%C3%BC HTTP/1.1\r\nhost: xn--grn-ioa.example\r\n"),
     ("http://a/b%20c%0d%0Ax?d=%0A", "a", b"POST /b%20c%0D%0Ax?d=%0A HTTP/1.1\r\nhost: a\r\n")],
)  # fmt: skip
def test_a_url_is_requested_as(url: str, host: str, line: bytes) -> None:
    target = Target.of(url, {"x": "\u00f6"})
    assert target.host == host
    assert target.request({"y": "1"}, b"{}") == line + "x: \u00f6\r\ny: 1\r\ncontent-length: 2\r\n\r\n{}".encode()
