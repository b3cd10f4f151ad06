"""A scripted server, for answers that real ones give only when they are broken."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

TIMEOUT = 20.0

Conversation = Callable[["Peer", "Scripted"], None]


class Peer:
    """A connected client."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def request(self) -> bytes:
        """Return its next request as a whole, or nothing once it has disconnected."""
        received = b""
        while b"\r\n\r\n" not in received:
            piece = self.sock.recv(65536)
            if not piece:
                return b""
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        while len(body) < length:
            body += self.sock.recv(65536)
        return head + b"\r\n\r\n" + body

    def answer(self, body: bytes = b'{"data":[]}', status: str = "200 OK", more: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.sock.sendall(head.encode() + body)

    def send(self, raw: bytes) -> None:
        self.sock.sendall(raw)


class Scripted:
    """The record of the server: `connections`, `disconnected` once a client has disconnected, and
    `closed` once the server has closed a connection."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""
        self.requested = threading.Event()
        self.disconnected = threading.Event()
        self.closed = threading.Event()


@contextmanager
def scripted(*conversations: Conversation, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """A server that runs one scripted conversation for each connection. The last one is repeated."""
    state = Scripted()
    listening = socket.create_server(("127.0.0.1", 0))
    scheme = "http" if tls is None else "https"
    state.url = f"{scheme}://localhost:{listening.getsockname()[1]}"
    failed: list[BaseException] = []

    def serve() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            sock.settimeout(TIMEOUT)
            conversation = conversations[min(state.connections, len(conversations) - 1)]
            state.connections += 1
            try:
                if tls is not None:
                    sock = tls.wrap_socket(sock, server_side=True)
                conversation(Peer(sock), state)
            except (ConnectionError, ssl.SSLError):
                pass
            except BaseException as error:
                failed.append(error)
            finally:
                sock.close()
                state.closed.set()

    thread = threading.Thread(target=serve, name="scripted server")
    thread.start()
    try:
        yield state
    finally:
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the conversation doesn't end"
    assert not failed, failed
