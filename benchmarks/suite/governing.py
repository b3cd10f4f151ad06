"""Consumers with fixed or governed concurrency, on handlers of every kind: the measuring parts of `governor`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import anyio
import msgspec

from benchmarks.checks import CheckFailed
from benchmarks.harness import STREAM, Bench
from benchmarks.payloads import Order
from headrace import App

LOOK = 0.1
"""Seconds between observations."""

Concurrency = int | tuple[int, int]
Handler = Callable[[Order], Awaitable[None] | None]

_names = count()


class Watched:
    """A handler, and what is observed of it from outside.

    Attributes:
        handled: messages so far.
        inside: calls that run now.
    """

    def __init__(self, messages: int) -> None:
        self.handled = 0
        self.inside = 0
        self.late: list[
            tuple[float, float]
        ] = []  # when a message was handled, and its latency since it was published, in seconds
        self._times = bytearray(messages)
        self._seconds_with: dict[int, float] = {}  # by the number of concurrent calls
        self._since = time.monotonic()

    def entered(self) -> int:
        """Record that a call begins. Returns how many run now."""
        self._note()
        self.inside += 1
        return self.inside

    def left(self, order: Order) -> None:
        """Record that a call ends."""
        self._note()
        self.inside -= 1
        self.handled += 1
        self._times[order.number] = min(self._times[order.number] + 1, 2)
        if order.at:
            now = time.monotonic_ns()
            self.late.append((now / 1e9, (now - order.at) / 1e9))

    def _note(self) -> None:
        now = time.monotonic()
        self._seconds_with[self.inside] = self._seconds_with.get(self.inside, 0.0) + now - self._since
        self._since = now

    def above(self, comfortable: int) -> tuple[int, float]:
        """The maximum number of calls, and the share of time with more than `comfortable`, since the previous query."""
        seconds, self._seconds_with = self._seconds_with, {}
        share = sum(spent for inside, spent in seconds.items() if inside > comfortable) / (sum(seconds.values()) or 1.0)
        return max(seconds, default=0), share

    def check(self) -> None:
        """Raise `CheckFailed` if a message was delivered twice. No handler failed, and no lease ran out."""
        if doubled := self._times.count(2):
            raise CheckFailed(f"{doubled} messages came more than once.")


def waiting(seconds: float, comfortable: int | None = None) -> Callable[[Watched], Handler]:
    """A handler that waits. Above `comfortable` calls, the wait grows with the square of their ratio."""

    def made(watched: Watched) -> Handler:
        async def handle(order: Order) -> None:
            inside = watched.entered()
            await anyio.sleep(seconds * (1.0 if comfortable is None else max(1.0, inside / comfortable) ** 2))
            watched.left(order)

        return handle

    return made


def computing(rounds: int) -> Callable[[Watched], Handler]:
    """A plain function that uses a core, in a thread. It hashes, so that it doesn't hold Python's global lock."""

    def made(watched: Watched) -> Handler:
        def handle(order: Order) -> None:
            hashlib.pbkdf2_hmac("sha256", b"order", b"salt", rounds)
            watched.handled += 1

        return handle

    return made


class Snapshot(msgspec.Struct, frozen=True):
    """An observation: seconds since the start, messages handled by then, and the target number of actors."""

    at: float
    handled: int
    actors: int


class Run(msgspec.Struct):
    """The results of one setting."""

    watched: Watched
    looks: list[Snapshot] = []

    def rate(self, since: float, until: float = float("inf")) -> float:
        """Messages per second between two times."""
        looks = [look for look in self.looks if since <= look.at <= until]
        if len(looks) < 2:
            return 0.0
        return (looks[-1].handled - looks[0].handled) / (looks[-1].at - looks[0].at)

    def reached(self, rate: float) -> float | None:
        """Seconds until the first second with this rate. None if there was none."""
        for look in self.looks:
            if look.at >= 1 and self.rate(look.at - 1 - LOOK / 2, look.at) >= rate:
                return look.at
        return None

    def usual(self, since: float) -> int:
        """The most frequent number of actors."""
        actors = [look.actors for look in self.looks if look.at >= since]
        return max(set(actors), key=actors.count)


async def run(
    place: Bench, made: Callable[[Watched], Handler], messages: int, concurrency: Concurrency,
    during: Callable[[App, Run], Awaitable[None]], settings: dict[str, Any],
) -> Run:  # fmt: skip
    """Run a new consumer while `during` lasts, on a stream of `messages` messages in the end."""
    seen = Run(Watched(messages))
    app, name = App(place.dsn), f"governed-{next(_names)}"
    app.consumer(STREAM, name=name, concurrency=concurrency, max_ack_pending=10_000, **settings)(made(seen.watched))
    async with app.running(), anyio.create_task_group() as group:
        group.start_soon(_watch, app, f"{STREAM}:{name}", seen)
        await during(app, seen)
        group.cancel_scope.cancel()
    seen.watched.check()
    return seen


async def _watch(app: App, consumer: str, seen: Run) -> None:
    start = time.monotonic()
    while True:
        target = app.statistics()["consumers"][consumer]["target"]
        seen.looks.append(Snapshot(time.monotonic() - start, seen.watched.handled, target))
        await anyio.sleep(LOOK)
