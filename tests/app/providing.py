"""Classes that the tests of dependencies provide."""

from __future__ import annotations

from typing import Protocol

from headrace import Depends


class Pool:
    def __init__(self) -> None:
        self.open = True


class Session:
    def __init__(self, pool: Pool, seq: int = 0) -> None:
        self.pool, self.seq = pool, seq


class Clock(Protocol):
    def now(self) -> int: ...


class Noon:
    def now(self) -> int:
        return 12


class Greeter:
    """Its dependencies are the parameters of its `__init__`."""

    def __init__(self, clock: Clock, session: Depends[Session]) -> None:
        self.clock, self.session = clock, session
