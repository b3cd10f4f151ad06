"""Connect to one of several addresses, some of which may not respond."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncpg

from headrace.model.database_url import UNREADABLE, UrlError

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
        all: each host with its port. Empty if the URL names none.
        primary: whether only a server that takes writes is accepted (`target_session_attrs`). There is one
            such server.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        target = parameters.get("target_session_attrs")
        self.all = addresses_of(parameters)
        self.primary = target in ("primary", "read-write")
        self._by_driver = len(self.all) < 2 or target == "prefer-standby"
        self._shuffled = parameters.get("load_balance_hosts") == "random"
        self._unresponsive: dict[Address, float] = {}

    def __len__(self) -> int:
        return max(len(self.all), 1)

    async def connect(self, attempt: Callable[..., Awaitable[Any]], timeout: float, **options: Any) -> Any:
        """Connect with `attempt`. It is passed `host`, `port` and `timeout` if there are several addresses.

        Args:
            timeout: seconds for all addresses together.
        """
        if self._by_driver:
            return await attempt(timeout=timeout, **options)
        share = max(timeout / len(self.all), MIN_TIMEOUT)
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
        found = random.sample(self.all, len(self.all)) if self._shuffled else self.all
        return sorted(found, key=lambda address: self._unresponsive.get(address, 0.0) > since)


def addresses_of(parameters: Mapping[str, str]) -> list[Address]:
    """The addresses that parameters of libpq name. Empty if they name none, so that the driver tries its own."""
    names, numbers = (parameters.get(name, "").split(",") for name in ("host", "hostaddr"))
    ports = parameters.get("port", "").split(",")
    count = max(len(names), len(numbers))
    if any(len(values) != count for values in (names, numbers) if values != [""]) or len(ports) not in (1, count):
        raise UrlError(
            f"has {count} hosts and {len(ports)} ports. Give one port, or a host, an address and a port for each."
        )
    hosts = [number or name for name, number in zip(_each(names, count), _each(numbers, count), strict=True)]
    if hosts == [""]:
        return []
    for host in hosts:
        _check(host)
    return [(host, int(port or 5432)) for host, port in zip(hosts, _each(ports, count), strict=True)]


def _each(values: list[str], count: int) -> list[str]:
    return values * count if len(values) == 1 else values


def _check(host: str) -> None:
    """Raise `UrlError` for a host that asyncpg can't connect to."""
    if host.startswith("@"):
        raise UrlError(
            "has a host in the abstract namespace, which asyncpg can't connect to. Name a directory of sockets."
        )
    try:
        if not host.startswith("/"):
            host.encode("idna")
    except UnicodeError:
        raise UrlError(UNREADABLE) from None
