"""Requests over real sockets, to servers that behave well or badly."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from headrace.client import Remote, Server
from headrace.client.request import Request
from headrace.client.transport import HttpTransport
from headrace.model.errors import ConfigurationError, InDoubt, InvalidInput, StoreUnavailable, UnknownStream
from tests.client.scripted import TIMEOUT, Peer, Scripted, scripted

pytestmark = pytest.mark.asyncio


def _answering(peer: Peer, state: Scripted) -> None:
    """A server that answers every request until the client disconnects."""
    while request := peer.request():
        state.requests.append(request)
        peer.answer()
    state.disconnected.set()


def _once(peer: Peer, state: Scripted) -> None:
    """A server that answers one request, and closes the connection without announcing it."""
    state.requests.append(peer.request())
    peer.answer()


def _silent(peer: Peer, state: Scripted) -> None:
    """A server that reads the request and never answers."""
    state.requests.append(peer.request())
    state.requested.set()
    if not peer.request():
        state.disconnected.set()


def _closing(peer: Peer, state: Scripted) -> None:
    """A server that reads the request and closes the connection."""
    state.requests.append(peer.request())


async def test_one_connection_serves_many_requests() -> None:
    with scripted(_answering) as server:
        async with Remote(server.url, token="t") as remote:
            for _ in range(5):
                assert await remote.streams() == []
        assert await asyncio.to_thread(server.disconnected.wait, TIMEOUT)
    assert server.connections == 1
    assert all(b"authorization: bearer t" in request.lower() for request in server.requests)


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    both = threading.Barrier(2)

    def together(peer: Peer, state: Scripted) -> None:
        def serve(own: Peer) -> None:
            with own.sock:
                own.request()
                both.wait(TIMEOUT)  # answers only after both requests
                own.answer()

        thread = threading.Thread(target=serve, args=[Peer(peer.sock.dup())])
        thread.start()
        threads.append(thread)

    threads: list[threading.Thread] = []
    with scripted(together) as server:
        async with Remote(server.url) as remote:
            assert await asyncio.gather(remote.streams(), remote.streams()) == [[], []]
        for thread in threads:
            thread.join(TIMEOUT)
    assert server.connections == 2


async def test_a_connection_that_the_server_has_closed_is_reopened() -> None:
    with scripted(_once) as server:
        transport = HttpTransport(Server(server.url))
        await transport.send(Request(method="GET", path="/v1/streams"))
        assert await asyncio.to_thread(server.closed.wait, TIMEOUT)
        await transport.send(
            Request(method="POST", path="/v1/streams", body={"name": "x"})
        )  # even if repeating it is not safe
        transport.close()
    assert server.connections == 2
    assert [request.split()[0] for request in server.requests] == [b"GET", b"POST"]


async def test_a_port_without_a_listener() -> None:
    with scripted(_answering) as server:
        pass
    async with Remote(server.url) as remote:
        with pytest.raises(StoreUnavailable, match=f"{server.url} can't be reached"):
            await remote.streams()


async def test_a_change_with_a_lost_answer_may_be_done_or_not() -> None:
    with scripted(_closing) as server:
        async with Remote(server.url) as remote:
            with pytest.raises(InDoubt, match="not known"):
                await remote.delete_stream("orders")
    assert len(server.requests) == 1


async def test_a_get_with_a_lost_answer_means_only_that_the_server_cannot_be_reached() -> None:
    with scripted(_closing) as server:
        async with Remote(server.url) as remote:
            with pytest.raises(StoreUnavailable) as caught:
                await remote.streams()
    assert type(caught.value) is StoreUnavailable


async def test_a_get_over_a_connection_that_breaks_is_sent_once_more() -> None:
    def answers_the_first(peer: Peer, state: Scripted) -> None:
        _once(peer, state)
        state.requests.append(peer.request())

    with scripted(answers_the_first, _answering) as server:
        async with Remote(server.url) as remote:
            assert await remote.streams() == []
            assert await remote.streams() == []
    assert server.connections == 2
    assert len(server.requests) == 3


async def test_a_server_that_doesnt_answer_in_time() -> None:
    with scripted(_silent) as server:
        async with _hasty(server) as remote:
            with pytest.raises(StoreUnavailable, match="in time"):
                await remote.streams()
            with pytest.raises(InDoubt, match="in time"):
                await remote.pause("orders", "ship")


async def test_a_request_may_wait_longer_for_its_answer() -> None:
    release = threading.Event()

    def patient(peer: Peer, state: Scripted) -> None:
        peer.request()
        state.requested.set()
        assert release.wait(TIMEOUT)
        peer.answer()

    with scripted(patient) as server:
        async with _hasty(server) as remote:
            asking = asyncio.create_task(remote.receive("orders", "ship", wait=TIMEOUT))
            assert await asyncio.to_thread(server.requested.wait, TIMEOUT)
            # Longer than the timeout of a request that does not wait for messages.
            done, _ = await asyncio.wait([asking], timeout=0.2)
            assert not done
            release.set()
            assert await asking == []


async def test_a_cancelled_request_disconnects_at_once() -> None:
    with scripted(_silent) as server:
        async with Remote(server.url) as remote:
            asking = asyncio.create_task(remote.receive("orders", "ship", wait=3600))
            assert await asyncio.to_thread(server.requested.wait, TIMEOUT)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await asyncio.to_thread(server.disconnected.wait, TIMEOUT)


async def test_an_error_response_leaves_the_connection_open() -> None:
    def refuses(peer: Peer, state: Scripted) -> None:
        while request := peer.request():
            state.requests.append(request)
            peer.answer(b'{"summary": "There is no stream.", "code": "unknown_stream"}', "404 Not Found")

    with scripted(refuses) as server:
        async with Remote(server.url) as remote:
            for _ in range(3):
                with pytest.raises(UnknownStream):
                    await remote.stream("x")
    assert server.connections == 1


async def test_a_too_large_request_is_reported_even_if_the_server_has_not_read_it_all() -> None:
    def hasty(peer: Peer, state: Scripted) -> None:
        peer.sock.recv(1000)
        peer.answer(b'{"summary": "Too large.", "code": "too_large"}', "413 Too Large", "Connection: close\r\n")
        while peer.sock.recv(1_000_000):  # unread data would reset the connection and lose the answer
            pass

    with scripted(hasty) as server:
        async with Remote(server.url) as remote:
            with pytest.raises(InvalidInput, match=r"Too large\."):
                await remote.send("orders", "a", '"' + 20_000_000 * "x" + '"')


@pytest.mark.parametrize(
    "raw",
    [
        b"220 smtp ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<ok>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 301 Moved\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope",
    ],
)
async def test_a_server_that_is_not_headrace_is_reported(raw: bytes) -> None:
    def other(peer: Peer, state: Scripted) -> None:
        peer.request()
        peer.send(raw)

    with scripted(other) as server:
        async with Remote(server.url) as remote:
            with pytest.raises(ConfigurationError, match=r"Headrace server\?"):
                await remote.streams()


async def test_half_an_answer_is_a_lost_connection() -> None:
    def half(peer: Peer, state: Scripted) -> None:
        peer.request()
        peer.send(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"data": [')

    with scripted(half) as server:
        async with Remote(server.url) as remote:
            with pytest.raises(StoreUnavailable):
                await remote.streams()
            with pytest.raises(InDoubt):
                await remote.pause("orders", "ship")


async def test_an_answer_in_chunks() -> None:
    def chunked(peer: Peer, state: Scripted) -> None:
        while peer.request():
            peer.send(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"dat\r\n6\r\na":[]}\r\n0\r\n\r\n')

    with scripted(chunked) as server:
        async with Remote(server.url) as remote:
            assert await remote.streams() == []
            assert await remote.streams() == []
    assert server.connections == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(file), "-out", str(file.with_suffix(".crt"))],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_bytes(file.read_bytes() + file.with_suffix(".crt").read_bytes())
    return file


@pytest.mark.process
async def test_a_private_certificate_authority_can_be_trusted(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with scripted(_answering, tls=tls) as server:
        async with Remote(server.url) as remote:
            with pytest.raises(StoreUnavailable, match=r"certificate isn't trusted.*--ca-file"):
                await remote.streams()
        async with Remote(Server(server.url, ca_file=str(certificate))) as remote:
            assert await remote.streams() == []


async def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="PEM"):
        await Remote(Server("https://localhost", ca_file=str(tmp_path / "none.pem"))).streams()
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ConfigurationError, match="PEM"):
        await Remote(Server("https://localhost", ca_file=str(tmp_path / "empty.pem"))).streams()


def _hasty(server: Scripted) -> Remote:
    return Remote(server.url, transport=HttpTransport(Server(server.url), timeout=0.05))
