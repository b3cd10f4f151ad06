"""One HTTP connection to a server. It opens on demand, stays open between requests, and reopens
after the server has closed it."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from contextlib import suppress

import msgspec

from headrace.client.address import Server
from headrace.client.errors import not_headrace, unreachable
from headrace.client.request import Request
from headrace.model.errors import ConfigurationError, HeadraceError, InDoubt, StoreUnavailable

TIMEOUT = 30.0
"""Time limit of an answer in seconds, in addition to the request's own `wait`."""

_CONNECTING = 10.0
_LARGEST = 512 * 1024 * 1024


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response."""

    status: int
    reason: str
    body: bytes


class Connection:
    """One connection. Its calls block. Only one thread may use it at a time, but any thread may call `hang_up`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = _connection(server)
        self._lock = threading.Lock()
        self._busy = False
        self._hung_up = False

    def ask(self, request: Request) -> HttpResponse:
        """Send a request and return the response, whatever its status.

        Raises:
            StoreUnavailable: the server can't be reached.
            InDoubt: the connection was lost after a changing request was sent. The change may have
                been made.
        """
        with self._lock:
            self._busy = True
        try:
            return self._ask(request)
        finally:
            with self._lock:
                self._busy = False
                if self._hung_up:
                    self._connection.close()

    def _ask(self, request: Request) -> HttpResponse:
        fresh = self._connect()
        try:
            return self._exchange(request)
        except _Broken as broken:
            if fresh or request.method != "GET":
                raise self._lost(request, broken) from broken.__cause__
        # The server closed it just after `_connect` had checked it. A GET changes nothing, so it is
        # sent again.
        self._connect()
        try:
            return self._exchange(request)
        except _Broken as broken:
            raise self._lost(request, broken) from broken.__cause__

    def hang_up(self) -> None:
        """Shut the connection down from another thread. A request that waits for its answer then
        fails and closes the connection."""
        with self._lock:
            self._hung_up = True
            if (sock := self._connection.sock) is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            if not self._busy:
                self._connection.close()

    def close(self) -> None:
        """Close the connection if it is open."""
        self._connection.close()

    def _connect(self) -> bool:
        """Open the connection unless it is open. Return whether it is new."""
        connection = self._connection
        if connection.sock is not None:
            if not _ended(connection.sock):
                return False
            connection.close()
        connection.timeout = _CONNECTING
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            raise unreachable(self._server.url, _why(error)) from error
        if self._hung_up:  # hung up meanwhile, no request has been sent yet
            connection.close()
            raise StoreUnavailable("The client has hung up.")
        return True

    def _exchange(self, request: Request) -> HttpResponse:
        self._connection.sock.settimeout(TIMEOUT + request.wait)
        sent = False
        try:
            self._send(request)
            sent = True
            response = self._connection.getresponse()
            return HttpResponse(response.status, response.reason, self._body(response))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
                raise not_headrace(self._server.url, "it doesn't answer in HTTP") from error
            raise _Broken(_why(error), sent) from error
        except BaseException:
            self._connection.close()
            raise

    def _send(self, request: Request) -> None:
        try:
            self._connection.request(
                request.method, self._server.root + request.target, body=request.content, headers=self._headers(request)
            )
        except (BrokenPipeError, ConnectionResetError):
            # The server may have answered before it read the whole request, for example because it
            # is too large.
            if not _ended(self._connection.sock):
                raise

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "headrace"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self._server.token is not None:
            headers["Authorization"] = f"Bearer {self._server.token}"
        return headers

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        body = response.read(_LARGEST + 1)
        if len(body) > _LARGEST:
            raise ConfigurationError(f"The answer is larger than {_LARGEST:,} bytes: ask for fewer messages at a time.")
        if response.length:
            raise http.client.IncompleteRead(body, response.length)
        return body

    def _lost(self, request: Request, broken: _Broken) -> HeadraceError:
        if request.method == "GET" or not broken.sent:
            return unreachable(self._server.url, broken.why)
        return InDoubt(
            f"The server {self._server.url} has not answered, so it is not known whether it was done: {broken.why}."
        )


class _Broken(Exception):
    """The connection ended before the response was complete."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent


def _connection(server: Server) -> http.client.HTTPConnection:
    """Return an unopened connection. Raises `ConfigurationError` if `ca_file` can't be read."""
    host, port = server.address
    if not server.secure:
        return http.client.HTTPConnection(host, port, timeout=_CONNECTING)
    try:
        context = ssl.create_default_context(cafile=server.ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"The authorities in {server.ca_file!r} can't be read: {error.strerror or error}; give a file in PEM."
        ) from error
    return http.client.HTTPSConnection(host, port, timeout=_CONNECTING, context=context)


def _ended(sock: socket.socket) -> bool:
    """Return whether the socket is readable: the server has closed it, or has sent something unasked."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _why(error: Exception) -> str:
    """Describe an error as the end of a sentence."""
    if isinstance(error, TimeoutError):
        return "it doesn't answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted, {error.verify_message}: --ca-file names an authority to trust"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
