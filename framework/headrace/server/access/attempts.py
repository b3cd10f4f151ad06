"""Limits what failed attempts to sign in cost the database, by the address of the caller. One that succeeds always passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from headrace.model.errors import Unauthorized
from headrace.server.errors import Problem
from headrace.server.http import Scope
from headrace.server.transport.clients import Clients

BURST = 100
"""Failures of one address that may come at once."""

PER_SECOND = 1.0
"""Failures a second of one address that may go on for ever."""

ROUND = 0.1
"""Seconds between the rounds in which the attempts of addresses are checked that have failed too often. All attempts of a
round share the statements that look them up."""

MAX_ADDRESSES = 10_000
"""The most addresses that are remembered. Those whose last failure is the oldest are forgotten first."""


class _Failures(msgspec.Struct):
    """How many failures count at a time. They are forgotten at `PER_SECOND`."""

    count: float
    at: float


class Attempts:
    """Counts failed attempts of each address, in this process.

    A caller that succeeds is never counted or refused. Many users may share the address of one that guesses.

    Args:
        clients: finds the addresses.
        clock: monotonic time in seconds.
    """

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients = clients
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    @asynccontextmanager
    async def attempt(self, scope: Scope) -> AsyncIterator[None]:
        """Check a credential in this context, which raises `Unauthorized` if it is wrong.

        Raises:
            Problem: it is, and the caller's address has failed too often (429).
        """
        address = self._clients.address_of(scope)
        seconds = self._blocked_for(address)
        if seconds:
            await asyncio.sleep(ROUND - asyncio.get_running_loop().time() % ROUND)
        try:
            yield
        except Unauthorized:
            if seconds:
                raise _too_many(seconds) from None
            self._failed(address)
            raise

    def _blocked_for(self, address: str) -> int:
        """Return for how many seconds further failures of an address get 429. 0 if they don't."""
        found = self._failures.get(address)
        excess = 0.0 if found is None else self._left(found) - BURST + 1
        return int(excess / PER_SECOND) + 1 if excess > 0 else 0

    def _failed(self, address: str) -> None:
        found = self._failures.pop(address, None)
        count = 0.0 if found is None else self._left(found)
        self._failures[address] = _Failures(count + 1, self._clock())
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def _left(self, found: _Failures) -> float:
        return max(0.0, found.count - (self._clock() - found.at) * PER_SECOND)


def _too_many(seconds: int) -> Problem:
    return Problem(
        429,
        "too_many_attempts",
        f"Too many attempts to sign in from your address have failed. Try again in {seconds} s.",
        headers={"retry-after": str(seconds)},
    )
