"""Limits failed attempts to sign in, by the address of the caller."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.server.errors import Problem
from headrace.server.http import Scope

BURST = 100
"""Failures of one address that may come at once."""

PER_SECOND = 1.0
"""Failures a second of one address that may go on for ever."""

MAX_ADDRESSES = 10_000
"""The most addresses that are remembered. Those whose last failure is the oldest are forgotten first."""


class _Failures(msgspec.Struct):
    """How many failures count at a time. They are forgotten at `PER_SECOND`."""

    count: float
    at: float


class Attempts:
    """Counts failed attempts of each address, in this process.

    A caller that succeeds costs nothing and is never counted.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def check(self, scope: Scope) -> None:
        """Raise a `Problem` with 429 if the caller's address has failed too often."""
        found = self._failures.get(address_of(scope))
        if found is not None and (left := self._left(found) - BURST + 1) > 0:
            seconds = int(left / PER_SECOND) + 1
            raise Problem(
                429, "too_many_attempts",
                f"Too many attempts to sign in from your address have failed. Try again in {seconds} s.",
                headers={"retry-after": str(seconds)},
            )  # fmt: skip

    def failed(self, scope: Scope) -> None:
        """Count a failed attempt."""
        address = address_of(scope)
        found = self._failures.pop(address, None)
        count = 0.0 if found is None else self._left(found)
        self._failures[address] = _Failures(count + 1, self._clock())
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def _left(self, found: _Failures) -> float:
        return max(0.0, found.count - (self._clock() - found.at) * PER_SECOND)


def address_of(scope: Any) -> str:
    """Return what identifies a caller: its IPv4 address, or the first 64 bits of its IPv6 address, as one machine has all of
    these. Callers on a Unix socket count as one."""
    try:
        address = ipaddress.ip_address((scope.get("client") or ("",))[0].partition("%")[0])
    except ValueError:
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
