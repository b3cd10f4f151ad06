"""Runs a scenario once for every message and every fault."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from tests.support import servers
from tests.sweep.proxy import Fault
from tests.sweep.scenario import SCENARIOS, World, world

CUTS = (Fault.BEFORE, Fault.AFTER, Fault.UNANSWERED)

VERDICTS = ("lost", "out of order", "doubled")

WARM_UPS = 3
"""How often a scenario runs without faults before its messages are counted."""


class Point(NamedTuple):
    """A message that meets a fault."""

    scenario: str
    fault: Fault
    at: int

    def __str__(self) -> str:
        return f"--scenario {self.scenario} --fault {self.fault} --at {self.at}"


class Report:
    """The runs, and their findings.

    Attributes:
        points: how many messages met each fault.
        found: how many things were lost, out of order and doubled.
        failures: what to run again, with what was wrong.
    """

    def __init__(self) -> None:
        self.points: Counter[tuple[str, Fault]] = Counter()
        self.messages: dict[str, int] = {}
        self.found: Counter[str] = Counter(dict.fromkeys((*VERDICTS, "not completed"), 0))
        self.failures: list[str] = []
        self._began = time.monotonic()

    def __str__(self) -> str:
        lines = [f"{count:>7}  {scenario}, {fault}, of {self.messages[scenario]} messages" for (scenario, fault), count in self.points.items()]  # fmt: skip
        lines += [f"{self.points.total():>7}  in all, in {time.monotonic() - self._began:.0f} s"]
        lines += [f"{count:>7}  {what}" for what, count in self.found.items()]
        return "\n".join([*lines, *self.failures[:20]])


@asynccontextmanager
async def lanes(
    server_dsn: str, template: str, count: int, through: Callable[[str], str] = str
) -> AsyncIterator[list[World]]:
    """Worlds in separate databases, on a running server."""
    async with AsyncExitStack() as stack:
        databases = [stack.enter_context(servers.clone(server_dsn, template)) for _ in range(count)]
        yield [await stack.enter_async_context(world(dsn, through)) for dsn in databases]


async def sweep(
    worlds: list[World], scenario: str, faults: Iterable[Fault], report: Report, at: int | None = None
) -> None:
    """Run a scenario for each fault, at every message or at one."""
    counts = []
    for made in worlds:
        for _ in range(WARM_UPS):
            made.proxy.arm()
            assert not any((await SCENARIOS[scenario](made).run()).values()), "it fails without a fault"
            counts.append(made.proxy.count)
    report.messages[scenario] = last = max(counts[WARM_UPS - 1 :: WARM_UPS])
    wanted = range(1, last + 1) if at is None else [at]
    points = iter([Point(scenario, fault, place) for fault in faults for place in wanted])
    async with asyncio.TaskGroup() as group:
        for made in worlds:
            group.create_task(_in_lane(made, points, report))


async def _in_lane(made: World, points: Iterator[Point], report: Report) -> None:
    for point in points:
        made.proxy.arm(point.fault, point.at)
        try:
            found = await SCENARIOS[point.scenario](made).run()
        except Exception as error:
            report.found["not completed"] += 1
            report.failures.append(f"{point}: {error!r}\n{''.join(traceback.format_tb(error.__traceback__)[-8:])}")
        else:
            wrong = {what: things for what, things in found.items() if things}
            report.found.update({what: len(things) for what, things in wrong.items()})
            if wrong:
                report.failures.append(f"{point}: {wrong}")
        report.points[point.scenario, point.fault] += made.proxy.met
