"""A torture run. It starts everything, injects one fault after the other, measures each recovery, and
judges at the end.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.torture.promises import observed
from tests.torture.promises.faults import Happened, drawn
from tests.torture.promises.history import KINDS, STREAM
from tests.torture.promises.judges import judge
from tests.torture.promises.site import Load, Site

LONGEST_WAIT = 30.0
"""Timeout of a recovery in seconds."""

_PROGRESS = """
select c.kind, extract(epoch from (select min(at) from judge.done as d where d.consumer = c.id and d.at >= to_timestamp($1)))::float8
from judge.consumers as c
"""


@dataclass
class Report:
    """The result of a run.

    Attributes:
        faults: The faults that happened, with the recovery time of each consumer in seconds after the
            fault's end.
        workers: The same for each worker that lived through the fault.
        breaches: The findings of the judges, by promise.
        counts: Numbers of what was done, by kind.
    """

    seed: int
    faults: list[tuple[Happened, dict[str, float]]] = field(default_factory=list)
    workers: list[dict[str, float]] = field(default_factory=list)
    breaches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def worst(self) -> float:
        """The longest recovery of any consumer in seconds. A single worker may have nothing to do after a fault."""
        return max((max(times.values()) for _, times in self.faults), default=0.0)

    def broken(self) -> dict[str, list[dict[str, Any]]]:
        """The promises that were broken."""
        return {promise: rows for promise, rows in self.breaches.items() if rows}

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.faults)} faults in {self.seconds:.0f} s; "
            + ", ".join(f"{count:,} {what}" for what, count in self.counts.items()),
            "",
            f"{'recovery in seconds after':<28}{'faults':>8}{'median':>8}{'worst':>8}  {'of':<10}{'worst worker':>13}",
        ]
        lines += [self._row(kind) for kind in dict.fromkeys(fault.kind for fault, _ in self.faults)]
        lines += ["", "promises:"]
        for promise, rows in self.breaches.items():
            lines.append(f"  {len(rows) or 'kept':>6}  {promise}" + (f"   e.g. {rows[0]}" if rows else ""))
        return "\n".join(lines)

    def _row(self, kind: str) -> str:
        times = [t for fault, t in self.faults if fault.kind == kind]
        slowest = [max(t.items(), key=lambda item: item[1]) for t in times]
        name, worst = max(slowest, key=lambda item: item[1])
        median = statistics.median(seconds for _, seconds in slowest)
        of_workers = [w for (fault, _), w in zip(self.faults, self.workers, strict=False) if fault.kind == kind]
        worker = max((max(w.values(), default=0.0) for w in of_workers), default=0.0)
        return f"{kind:<28}{len(times):>8}{median:>8.2f}{worst:>8.2f}  {name:<10}{worker:>13.2f}"


async def run(home: Path, load: Load, *, faults: int, seed: int, pause: tuple[float, float], patience: float) -> Report:
    """Publish and handle messages with at least so many faults, for as long as there is something to publish.

    Args:
        home: A directory for logs and records.
        pause: Minimum and maximum seconds between a recovery and the next fault.
        patience: Seconds for which the remaining work at the end may stay the same.
    """
    chance = random.Random(seed)
    report = Report(seed)
    async with Site(home, load, seed) as site:
        began = time.monotonic()
        published = asyncio.create_task(site.published())
        to_come = drawn(chance, faults)
        while to_come or not published.done():
            fault = to_come.pop(0) if to_come else drawn(chance, 100)[50]
            await asyncio.sleep(chance.uniform(*pause))
            site.supervise()
            happened = await site.alive(Happened.of(fault, site, chance))
            report.faults.append((happened, await site.alive(recovery(site, happened.ended))))
        await site.finish(patience)
        report.seconds = time.monotonic() - began
        connection = await asyncpg.connect(site.pair.primary.url)
        try:
            await take_down(connection, site)
            report.breaches = await judge(connection)
            report.counts = await counted(connection)
        finally:
            await connection.close()
        report.workers = recoveries_of_workers(site, [fault.ended for fault, _ in report.faults])
    return report


async def recovery(site: Site, since: float) -> dict[str, float]:
    """Wait until each consumer has settled something after that time. Returns the seconds that each
    took, by its name.
    """
    found: dict[str, float] = {}
    end = time.monotonic() + LONGEST_WAIT
    while len(found) < len(KINDS) and time.monotonic() < end:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            connection = await asyncpg.connect(site.pair.primary.url, timeout=5)
            try:
                while len(found) < len(KINDS) and time.monotonic() < end:
                    rows = await connection.fetch(_PROGRESS, since, timeout=5)
                    found |= {kind: at - since for kind, at in rows if at is not None and kind not in found}
                    await asyncio.sleep(0.05)
            finally:
                await connection.close(timeout=5)
        await asyncio.sleep(0.05)
    return {kind: found.get(kind, LONGEST_WAIT) for kind in KINDS}


def recoveries_of_workers(site: Site, ends: list[float]) -> list[dict[str, float]]:
    """Return the seconds until the first settle of each worker that was running at the end of a fault."""
    settled = {name: times(site.home / f"{name}.notes") for name in site.lives}
    found = []
    for end, following in zip(ends, [*ends[1:], float("inf")], strict=True):
        took = {}
        for name, life in site.lives.items():
            if life.ready_at < end < life.died_at:
                after = next((t for t in settled[name] if t >= end), life.died_at)
                if after < life.died_at or life.died_at - end > LONGEST_WAIT:
                    took[name] = min(after, following + LONGEST_WAIT) - end
        found.append(took)
    return found


def times(path: Path) -> list[float]:
    """Return the times when settles of a worker were answered."""
    return [rows[0][4] for what, rows in observed.read_file(path) if what == "settled"]


async def take_down(connection: Any, site: Site) -> None:
    """Load what processes saw, and the failovers, beside the database's records."""
    await connection.execute(observed.TABLES)
    await observed.load(connection, site.home)
    await connection.copy_records_to_table(
        "failovers", schema_name="judge", records=[tuple(asdict(one).values()) for one in site.failovers]
    )


async def counted(connection: Any) -> dict[str, int]:
    row = await connection.fetchrow(f"""
        select (select count(*) from headrace_streams.{STREAM}) as messages,
               (select count(*) from judge.saw_published) as promised,
               (select count(*) from judge.leased) as leases,
               (select count(*) from leased) as deliveries,
               (select count(*) from headrace_internal.dead_letters) as dead_letters,
               (select count(*) from effects where not held) as too_late,
               (select count(*) from taken_back) as effects_taken_back,
               (select count(*) from judge.saw_look_up) as commits_in_doubt,
               (select count(*) from judge.saw_look_up where committed) as of_these_committed,
               (select count(*) from judge.failovers) as failovers""")
    return {name.replace("_", " "): count for name, count in row.items()}
