"""The HTTP connections that push consumers share. Addresses are checked when a connection is
made, not when a name is resolved."""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp

from headrace.model.push import LONGEST_TIMEOUT
from headrace.server.push.addresses import AllowedAddresses

MAX_CONNECTIONS = 1000
"""Most concurrent connections."""

IDLE_TIMEOUT = 4.0
"""Seconds for which an idle connection is kept. Many servers close theirs after 5, and a request
sent at that moment is lost."""


class AddressNotAllowed(OSError):
    """Push consumers may not connect to the address."""

    def __str__(self) -> str:
        return str(self.strerror)


def session(allowed: AllowedAddresses) -> aiohttp.ClientSession:
    """Make an HTTP client that connects to allowed addresses only, keeps no cookies, and uses no
    proxy from the environment."""

    def open_socket(address: tuple[Any, ...]) -> socket.socket:
        # Called with the address that is connected to next.
        family, kind, protocol, _, target = address
        refusal = allowed.refusal(target[0])
        if refusal is not None:
            raise AddressNotAllowed(errno.EACCES, refusal)
        return socket.socket(family, kind, protocol)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_TIMEOUT, socket_factory=open_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        auto_decompress=False,  # none was requested, and decompressed data has no bound
        trust_env=False,
    )


def timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return a time limit for a whole request, in seconds with millisecond precision. By
    default, the client rounds long ones up to whole seconds."""
    return aiohttp.ClientTimeout(total=seconds, ceil_threshold=LONGEST_TIMEOUT)
