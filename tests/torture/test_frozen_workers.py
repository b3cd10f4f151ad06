"""Workers that freeze for longer than their leases: what they wake up with does not begin any more.

`HEADRACE_TEST_FREEZES=60` freezes more often than the short form. On another PostgreSQL:
`make test-postgres VERSION=14 ARGS="tests/torture/test_frozen_workers.py -m torture"`, with the programs of that version.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace import App
from tests.torture.fleet import Worker, spawn
from tests.torture.frozen_worker import ACK_WAIT

FREEZES = int(os.environ.get("HEADRACE_TEST_FREEZES", "2"))
KEYS = 40
PATIENCE = 120.0


class Beginning(NamedTuple):
    """A handler has begun."""

    at: float
    key: str
    seq: int
    attempt: int
    pid: int


def late_beginnings(beginnings: Iterable[Beginning]) -> list[Beginning]:
    """Return the beginnings of messages that had been given to another process by then, or that a later message of their key
    had passed."""
    attempts: dict[int, int] = defaultdict(int)
    furthest: dict[str, int] = defaultdict(int)
    late = []
    for one in sorted(beginnings):
        if one.attempt <= attempts[one.seq] or (one.attempt == 1 and one.seq < furthest[one.key]):
            late.append(one)
        attempts[one.seq] = max(attempts[one.seq], one.attempt)
        furthest[one.key] = max(furthest[one.key], one.seq)
    return late


def whole(pid: int) -> list[int]:
    """The process and those that it has started, as a machine that is paused stops them all."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(process for child in children for process in whole(int(child)))]


async def freeze(worker: Worker, seconds: float) -> None:
    frozen = whole(worker.process.pid)
    for number, pids in ((signal.SIGSTOP, frozen), (signal.SIGCONT, frozen[::-1])):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if number is signal.SIGSTOP:
            await asyncio.sleep(seconds)


def test_a_beginning_after_that_of_another_process_is_late() -> None:
    first, passed, again = Beginning(1, "a", 1, 1, 7), Beginning(2, "a", 2, 1, 7), Beginning(3, "a", 1, 2, 8)
    assert late_beginnings([first, passed, again, Beginning(4, "a", 2, 2, 8)]) == []
    assert late_beginnings([passed, again, zombie := Beginning(4, "a", 1, 1, 7)]) == [zombie]
    assert late_beginnings([passed, first._replace(at=3)]) == [first._replace(at=3)]


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("runner", ["async", "thread", "process"])
async def test_what_a_frozen_worker_held_does_not_begin_when_it_wakes_up(dsn: str, tmp_path: Path, runner: str) -> None:
    chance, into, app = random.Random(runner), tmp_path / "beginnings", App(dsn, streams=["orders"])
    published = 0

    async def publish() -> None:
        nonlocal published
        while not done.is_set():
            await app.publish_many("orders", [(f"k{chance.randrange(KEYS)}", 1) for _ in range(40)])
            published += 40
            await asyncio.sleep(0.05)

    done = asyncio.Event()
    async with app:
        workers = [
            await spawn(runner, tmp_path / f"{n}.log", module="tests.torture.frozen_worker", dsn=dsn, into=into)
            for n in range(2)
        ]
        ends = [asyncio.create_task(worker.read()) for worker in workers]
        try:
            async with asyncio.timeout(PATIENCE + FREEZES * 6 * ACK_WAIT):
                for worker in workers:
                    await worker.said(lambda lines: {"ready": True} in lines)
                publishing = asyncio.create_task(publish())
                for _ in range(FREEZES):
                    await asyncio.sleep(chance.uniform(0.3, 1.0))
                    await freeze(chance.choice(workers), 2.5 * ACK_WAIT)
                done.set()
                await publishing
                for worker in workers:
                    worker.finish()
                assert await asyncio.gather(*ends) == [0, 0], workers[0].last_words()
        finally:
            for worker in workers:
                worker.send(signal.SIGCONT)
                worker.send(signal.SIGKILL)
            await asyncio.gather(*ends, return_exceptions=True)
    beginnings = [Beginning(*json.loads(line)) for line in into.read_text().splitlines()]
    assert {one.seq for one in beginnings} == set(range(1, published + 1)), "nothing is lost"
    assert late_beginnings(beginnings) == []
