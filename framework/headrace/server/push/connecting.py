"""The connections that push consumers share. Addresses are judged where a connection is made, not where a name is resolved."""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp

from headrace.model.push import LONGEST_TIMEOUT
from headrace.server.push.addresses import Allowed

MOST = 1000
"""Connections at a time."""

IDLE = 4.0
"""Seconds for which a connection is kept for the next request. Many servers close theirs after 5, and a request that meets that is lost."""


class Denied(OSError):
    """The address may not be pushed to."""

    def __str__(self) -> str:
        return str(self.strerror)


def session(allowed: Allowed) -> aiohttp.ClientSession:
    """An HTTP client that connects to no other addresses, keeps no cookies, and asks the environment for no proxy."""

    def open_socket(address: tuple[Any, ...]) -> socket.socket:
        # Called with the very address that is connected to next.
        family, kind, protocol, _, where = address
        why_not = allowed.why_not(where[0])
        if why_not is not None:
            raise Denied(errno.EACCES, why_not)
        return socket.socket(family, kind, protocol)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=MOST, keepalive_timeout=IDLE, socket_factory=open_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        auto_decompress=False,  # nothing compressed was asked for, and what expands has no bound
        trust_env=False,
    )


def timeout(seconds: float) -> aiohttp.ClientTimeout:
    """A bound on a whole request, to the millisecond: by itself the client rounds long ones up to whole seconds."""
    return aiohttp.ClientTimeout(total=seconds, ceil_threshold=LONGEST_TIMEOUT)
