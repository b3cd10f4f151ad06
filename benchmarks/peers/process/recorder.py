"""The handler of all peers, and what it observed."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Write = Callable[[str, Any], Awaitable[Any]]
"""Runs a statement with one parameter, in the transaction of the ack."""

Handle = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
"""Handles an order."""

EFFECT = "insert into effects (number) values ($1)"
EFFECTS = "insert into effects (number) select * from unnest($1::bigint[])"

WORK = 0.001
"""Seconds that a handler of `work` awaits."""


class Recorder:
    """Observations of a worker's handlers: three integers for each entry, in the order of time.

    An entry is the message's number where its handler began, or the complement where one that awaits ended, then
    CLOCK_MONOTONIC, and the time at which the message was published. Times are in nanoseconds. They are checked after the
    run, since the handler's own time is part of what is measured.
    """

    def __init__(self) -> None:
        self.entries: list[int] = []  # an array takes twice as long to extend
        self.handled = 0
        self.release = asyncio.Event()

    def write(self, file: Path) -> None:
        with file.open("wb") as stream:
            array("q", self.entries).tofile(stream)


class Handler:
    """The handler of a job, which adapters call with each order.

    Args:
        mode: `noop`; `work` awaits a millisecond; `hold` holds one message until it is released; `effect` writes a
            row; `fail` raises for message 0 the first time; `slow` takes `seconds`.
        recorder: gets the observations.
        write: how a row is written where the adapter has no transaction for it.
        seconds: how long a handler of `slow` takes.
        held: the message that `hold` holds.

    Attributes:
        handle: the handler as a function of the order alone, for frameworks that call a function of yours.
    """

    def __init__(
        self, mode: str, recorder: Recorder, write: Write | None = None, *, seconds: float = 0.0, held: int = 0
    ) -> None:
        self.mode = mode
        self.recorder = recorder
        self.release = recorder.release
        self._write = write
        self._held = held
        self._failed = False
        self._noop = _noop(recorder)
        kinds: dict[str, Handle] = {
            "noop": self._noop,
            "work": _awaiting(recorder, partial(asyncio.sleep, WORK)),
            "hold": self._hold,
            "effect": self._effect,
            "fail": self._fail,
            "slow": _awaiting(recorder, partial(asyncio.sleep, seconds)),
        }
        self._until_released = _awaiting(recorder, self.release.wait)
        self.handle = kinds[mode]

    def __call__(self, order: dict[str, Any], write: Write | None = None) -> Coroutine[Any, Any, None]:
        return self.handle(order) if write is None else self._effect(order, write)

    @property
    def awaits(self) -> bool:
        """Whether several orders should be handled at the same time."""
        return self.mode not in ("noop", "effect")

    async def run(self, orders: Sequence[dict[str, Any]], *, ordered: bool, write: Write | None = None) -> None:
        """Handle a batch: all at the same time or, if `ordered`, those of a key one after the other.

        It is the loop of a user whose queue hands out batches.
        """
        if self.mode == "effect" and write is not None:
            numbers = [order["number"] for order in orders]
            for order in orders:
                self.recorder.entries.extend((order["number"], time.monotonic_ns(), order["at"]))
            await write(EFFECTS, numbers)
            self.recorder.handled += len(numbers)
        elif not self.awaits:
            for order in orders:
                await self.handle(order)
        elif ordered:
            lanes: dict[int, list[dict[str, Any]]] = {}
            for order in orders:
                lanes.setdefault(order["key"], []).append(order)
            await asyncio.gather(*map(self._one_by_one, lanes.values()))
        else:
            await asyncio.gather(*(self(order, write) for order in orders))

    async def _one_by_one(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            await self.handle(order)

    async def _effect(self, order: dict[str, Any], write: Write | None = None) -> None:
        self.recorder.entries.extend((order["number"], time.monotonic_ns(), order["at"]))
        write = write or self._write
        assert write is not None
        await write(EFFECT, order["number"])
        self.recorder.handled += 1

    async def _hold(self, order: dict[str, Any]) -> None:
        await (self._until_released if order["number"] == self._held else self._noop)(order)

    async def _fail(self, order: dict[str, Any]) -> None:
        if order["number"] == 0 and not self._failed:
            self._failed = True
            raise RuntimeError("the first attempt of message 0 fails")
        await self._noop(order)


def _noop(recorder: Recorder) -> Handle:
    note, clock = recorder.entries.extend, time.monotonic_ns

    async def noop(order: dict[str, Any]) -> None:
        note((order["number"], clock(), order["at"]))
        recorder.handled += 1

    return noop


def _awaiting(recorder: Recorder, wait: Callable[[], Awaitable[Any]]) -> Handle:
    note, clock = recorder.entries.extend, time.monotonic_ns

    async def awaiting(order: dict[str, Any]) -> None:
        note((order["number"], clock(), order["at"]))
        await wait()
        note((~order["number"], clock(), order["at"]))
        recorder.handled += 1

    return awaiting
