"""The handler of all peers, and what it observed."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

Write = Callable[[str, Any], Awaitable[Any]]
"""Runs a statement with one parameter, in the transaction of the ack."""

EFFECT = "insert into effects (number) values ($1)"
EFFECTS = "insert into effects (number) select * from unnest($1::bigint[])"

WORK = 0.001
"""Seconds that a handler of `work` awaits."""


class Recorder:
    """Observations of a worker's handlers: three integers for each entry, in the order of time.

    An entry is the message's number where its handler began, or the complement where one that awaits ended, then
    CLOCK_MONOTONIC, and the time at which the message was published. Times are in nanoseconds.
    """

    def __init__(self) -> None:
        self.entries = array("q")
        self.handled = 0
        self.release = asyncio.Event()

    def note(self, number: int, at: int) -> None:
        self.entries.extend((number, time.monotonic_ns(), at))

    def write(self, file: Path) -> None:
        with file.open("wb") as stream:
            self.entries.tofile(stream)


class Handler:
    """The handler of a job, which adapters call with each order.

    Args:
        mode: `noop`; `work` awaits a millisecond; `hold` holds one message until it is released; `effect` writes a
            row; `fail` raises for message 0 the first time; `slow` takes `seconds`.
        recorder: gets the observations.
        write: how a row is written where the adapter has no transaction for it.
        seconds: how long a handler of `slow` takes.
        held: the message that `hold` holds.
    """

    def __init__(
        self, mode: str, recorder: Recorder, write: Write | None = None, *, seconds: float = 0.0, held: int = 0
    ) -> None:
        self.mode = mode
        self.recorder = recorder
        self.release = recorder.release
        self._write = write
        self._seconds = seconds
        self._held = held
        self._failed = False
        kinds: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
            "noop": self._noop,
            "work": self._work,
            "hold": self._hold,
            "effect": self._effect,
            "fail": self._fail,
            "slow": self._slow,
        }
        self._handle = kinds[mode]

    def __call__(self, order: dict[str, Any], write: Write | None = None) -> Coroutine[Any, Any, None]:
        return self._handle(order, write)

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
                self.recorder.note(order["number"], order["at"])
            await write(EFFECTS, numbers)
            self.recorder.handled += len(numbers)
        elif not self.awaits:
            for order in orders:
                await self._handle(order)
        elif ordered:
            lanes: dict[int, list[dict[str, Any]]] = {}
            for order in orders:
                lanes.setdefault(order["key"], []).append(order)
            await asyncio.gather(*map(self._one_by_one, lanes.values()))
        else:
            await asyncio.gather(*(self._handle(order, write) for order in orders))

    async def _one_by_one(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            await self._handle(order)

    async def _noop(self, order: dict[str, Any], write: Write | None = None) -> None:
        self.recorder.note(order["number"], order["at"])
        self.recorder.handled += 1

    async def _effect(self, order: dict[str, Any], write: Write | None = None) -> None:
        self.recorder.note(order["number"], order["at"])
        write = write or self._write
        assert write is not None
        await write(EFFECT, order["number"])
        self.recorder.handled += 1

    async def _work(self, order: dict[str, Any], write: Write | None = None) -> None:
        await self._awaiting(order, asyncio.sleep(WORK))

    async def _slow(self, order: dict[str, Any], write: Write | None = None) -> None:
        await self._awaiting(order, asyncio.sleep(self._seconds))

    async def _hold(self, order: dict[str, Any], write: Write | None = None) -> None:
        if order["number"] == self._held:
            await self._awaiting(order, self.release.wait())
        else:
            await self._noop(order)

    async def _fail(self, order: dict[str, Any], write: Write | None = None) -> None:
        if order["number"] == 0 and not self._failed:
            self._failed = True
            raise RuntimeError("the first attempt of message 0 fails")
        await self._noop(order)

    async def _awaiting(self, order: dict[str, Any], wait: Coroutine[Any, Any, Any]) -> None:
        self.recorder.note(order["number"], order["at"])
        await wait
        self.recorder.note(~order["number"], order["at"])
        self.recorder.handled += 1
