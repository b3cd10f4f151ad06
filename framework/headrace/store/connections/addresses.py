"""Connect to one of several addresses, some of which may not respond."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

AVOID_SECONDS = 60.0
"""Seconds for which an address that did not respond is tried after the others. Applies if the URL says which
kind of server is wanted.
"""

MIN_TIMEOUT = 2.0
"""The minimum timeout of each address in seconds."""

# Errors of one address that say nothing about the others.
_TRY_NEXT = (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched)

Address = tuple[str, int]


class Addresses:
    """The addresses of a database URL, in its order. Addresses that recently did not respond come last.

    The driver would try all of them within one deadline, which an unresponsive first address uses up.

    Attributes:
        primary: whether only a server that takes writes is accepted (`target_session_attrs`). There is one
            such server.
    """

    def __init__(self, dsn: str) -> None:
        self._all = addresses_of(dsn)
        self.primary = _target_attribute(dsn) in ("primary", "read-write")
        self._unresponsive: dict[Address, float] = {}

    def __len__(self) -> int:
        return max(len(self._all), 1)

    async def connect(self, attempt: Callable[..., Awaitable[Any]], timeout: float, **options: Any) -> Any:
        """Connect with `attempt`. It is passed `host`, `port` and `timeout` if there are several addresses.

        Args:
            timeout: seconds for all addresses together.
        """
        if len(self._all) < 2:
            return await attempt(timeout=timeout, **options)
        share = max(timeout / len(self._all), MIN_TIMEOUT)
        failure: BaseException | None = None
        for address in self._in_order():
            host, port = address
            try:
                connection = await attempt(host=host, port=port, timeout=share, **options)
            except _TRY_NEXT as error:
                failure = error
                if isinstance(error, TimeoutError) and self.primary:
                    self._unresponsive[address] = time.monotonic()
            else:
                self._unresponsive.pop(address, None)
                return connection
        assert failure is not None
        raise failure

    def _in_order(self) -> list[Address]:
        since = time.monotonic() - AVOID_SECONDS
        return sorted(self._all, key=lambda address: self._unresponsive.get(address, 0.0) > since)


def addresses_of(dsn: str) -> list[Address]:
    """The hosts and ports of a URL. Empty if there is no choice, or if only the driver can read the URL."""
    try:
        parts = urlsplit(dsn)
        parameters = parse_qs(parts.query)
    except ValueError:
        return []
    authority = unquote(parts.netloc.rpartition("@")[2])
    hosts = [_host_and_port(one) for one in authority.split(",")] if authority else []
    if not hosts and "host" in parameters:
        hosts = [(host, "") for host in parameters["host"][-1].split(",")]
    ports = parameters["port"][-1].split(",") if "port" in parameters else []
    if len(ports) not in (0, 1, len(hosts)) or _target_attribute(dsn) == "prefer-standby":
        return []
    common = ports * len(hosts) if len(ports) == 1 else ports or [""] * len(hosts)
    try:
        return [(host, int(port or other or 5432)) for (host, port), other in zip(hosts, common, strict=True)]
    except ValueError:
        return []


def _target_attribute(dsn: str) -> str:
    """The kind of server that the URL asks for."""
    try:
        return parse_qs(urlsplit(dsn).query).get("target_session_attrs", ["any"])[-1]
    except ValueError:
        return "any"


def _host_and_port(text: str) -> tuple[str, str]:
    if text.startswith("["):  # an IPv6 address
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":")
    return host, port
