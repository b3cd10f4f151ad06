"""One HTTP connection to a server. It opens on demand, stays open between requests, and reopens
after the server has closed it."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from contextlib import suppress

from headrace.client.address import Server
from headrace.client.errors import not_headrace, unreachable
from headrace.client.request import Request, Response
from headrace.model.errors import ConfigurationError, HeadraceError, InDoubt, StoreUnavailable

TIMEOUT = 30.0
"""The default timeout of a response, in seconds."""

_CONNECT_TIMEOUT = 10.0
_MAX_BODY = 512 * 1024 * 1024


class Connection:
    """One connection. Its calls block. Only one thread may use it at a time, but any thread may call `abort`.

    Args:
        timeout: timeout of a response in seconds, in addition to the request's own `extra_time`.
    """

    def __init__(self, server: Server, timeout: float = TIMEOUT) -> None:
        self._server = server
        self._timeout = timeout
        self._connection = _connection(server)
        self._lock = threading.Lock()
        self._busy = False
        self._aborted = False

    def send(self, request: Request) -> Response:
        """Send a request and return the response, whatever its status.

        Raises:
            StoreUnavailable: the server can't be reached.
            InDoubt: the connection was lost after a changing request was sent. The change may have
                been made.
        """
        with self._lock:
            self._busy = True
        try:
            return self._send_with_retry(request)
        finally:
            with self._lock:
                self._busy = False
                if self._aborted:
                    self._connection.close()

    def _send_with_retry(self, request: Request) -> Response:
        new = self._connect()
        try:
            return self._exchange(request)
        except _ConnectionLost as lost:
            if new or request.method != "GET":
                raise self._error_of(request, lost) from lost.__cause__
        # The server closed it just after `_connect` had checked it. A GET changes nothing, so it is
        # sent again.
        self._connect()
        try:
            return self._exchange(request)
        except _ConnectionLost as lost:
            raise self._error_of(request, lost) from lost.__cause__

    def abort(self) -> None:
        """Shut the connection down from another thread. A request that waits for its response then
        fails and closes the connection."""
        with self._lock:
            self._aborted = True
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
            if not _is_readable(connection.sock):
                return False
            connection.close()  # the server has closed it, or has sent something without a request
        connection.timeout = _CONNECT_TIMEOUT
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            raise unreachable(self._server.url, _reason(error)) from error
        if self._aborted:  # meanwhile, before a request was sent
            connection.close()
            raise StoreUnavailable("The request was cancelled before it was sent.")
        return True

    def _exchange(self, request: Request) -> Response:
        self._connection.sock.settimeout(self._timeout + request.extra_time)
        sent = False
        try:
            self._write(request)
            sent = True
            response = self._connection.getresponse()
            return Response(self._server.url, response.status, response.reason, _read(response))
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
                raise not_headrace(self._server.url, "It doesn't respond in HTTP.") from error
            raise _ConnectionLost(_reason(error), sent) from error
        except BaseException:
            self._connection.close()
            raise

    def _write(self, request: Request) -> None:
        try:
            self._connection.request(
                request.method, self._server.root + request.target, body=request.content, headers=self._headers(request)
            )
        except (BrokenPipeError, ConnectionResetError):
            # The server may have responded before it read the whole request, for example because it
            # is too large.
            if not _is_readable(self._connection.sock):
                raise

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "headrace"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if self._server.token is not None:
            headers["Authorization"] = f"Bearer {self._server.token}"
        return headers

    def _error_of(self, request: Request, lost: _ConnectionLost) -> HeadraceError:
        if request.method == "GET" or not lost.sent:
            return unreachable(self._server.url, lost.reason)
        return InDoubt(
            f"The server {self._server.url} did not respond, so it is not known whether the change was made: {lost.reason}."
        )


class _ConnectionLost(Exception):
    """The connection ended before the response was complete."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


def _connection(server: Server) -> http.client.HTTPConnection:
    """Return an unopened connection. Raises `ConfigurationError` if `ca_file` can't be read."""
    host, port = server.address
    if not server.secure:
        return http.client.HTTPConnection(host, port, timeout=_CONNECT_TIMEOUT)
    try:
        context = ssl.create_default_context(cafile=server.ca_file)
    except OSError as error:
        raise ConfigurationError(
            f"The CA file {server.ca_file!r} can't be read: {error.strerror or error}. Pass a file with certificates in PEM format."
        ) from error
    return http.client.HTTPSConnection(host, port, timeout=_CONNECT_TIMEOUT, context=context)


def _read(response: http.client.HTTPResponse) -> bytes:
    body = response.read(_MAX_BODY + 1)
    if len(body) > _MAX_BODY:
        raise ConfigurationError(f"The response is larger than {_MAX_BODY:,} bytes. Request fewer messages at a time.")
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _reason(error: Exception) -> str:
    """Describe an error as the end of a sentence."""
    if isinstance(error, TimeoutError):
        return "it doesn't respond in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted, {error.verify_message}. Pass a CA certificate to trust with --ca-file"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
