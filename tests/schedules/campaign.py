"""Many schedules, in several processes."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from tests.schedules import planted, states
from tests.schedules.explore import Explorer, Outcome, Pair, pairs, prioritized
from tests.schedules.operations import OPERATIONS
from tests.schedules.schedules import Runner
from tests.support import servers

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Report:
    """What was run, and what was found."""

    kinds: Counter[str] = field(default_factory=Counter)
    violations: dict[str, str] = field(default_factory=dict)
    """A schedule for each violation."""
    seconds: float = 0.0

    def add(self, kind: str, outcome: Outcome) -> None:
        self.kinds[kind] += 1
        self.kinds["cut"] += any(leg.cut for leg in outcome.schedule.legs)
        for violation in outcome.violations:
            if violation not in self.violations:
                self.violations[violation] = str(outcome.schedule)
                print(f"{violation}\n    {outcome.schedule}", file=sys.stderr, flush=True)

    def merge(self, other: Report) -> None:
        self.kinds.update(other.kinds)
        self.violations = {**other.violations, **self.violations}
        self.seconds = max(self.seconds, other.seconds)

    def lines(self) -> Iterator[str]:
        total = sum(count for kind, count in self.kinds.items() if kind != "cut")
        yield f"{total:,} schedules in {self.seconds:.0f} s, {total / max(self.seconds, 0.1):.0f} a second"
        yield from (f"  {count:>9,} {kind}" for kind, count in sorted(self.kinds.items()))
        yield f"{len(self.violations)} violations"
        yield from (f"  {text}\n    {line}" for text, line in self.violations.items())


@contextmanager
def server(directory: Path | None = None) -> Iterator[str]:
    """A Postgres server of its own, since a transaction in another database is one that may fill holes, too."""
    place = directory or Path(mkdtemp(prefix="headrace-schedules-", dir=MEMORY))
    try:
        with servers.server(place / "postgres") as dsn:
            yield dsn
    finally:
        servers.destroy(place / "postgres")
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def explorer(dsn: str, state: str, plant: states.Plant | None = None) -> Iterator[Explorer]:
    with states.prepared(dsn, state, plant) as prepared:
        runner = Runner(prepared.dsn)
        try:
            yield Explorer(prepared, runner)
        finally:
            runner.close()


def usable(state: states.State) -> list[str]:
    """The operations that make sense in a state: an owner settles what it has. Where a key has one message, a transaction
    that is open beforehand would hold up all others."""
    return [
        name
        for name, one in OPERATIONS.items()
        if (one.owner is None or one.owner in state.leases) and not (one.prelude and state.name == "compacted")
    ]


def work(directory: Path, part: int, parts: int, options: argparse.Namespace) -> Report:
    """Run one part of the schedules, on a server of its own."""
    report = Report()
    chosen = sorted(options.states)
    with server(directory) as dsn:
        begun = time.monotonic()
        share = options.seconds / len(chosen) if options.seconds else float("inf")
        for place, name in enumerate(chosen):
            with explorer(dsn, name) as one:
                generator = random.Random(f"{options.seed} {name} {part}")
                until = begun + share * (place + 1)
                for kind, outcome in _schedules(one, generator, part, parts, options):
                    report.add(kind, outcome)
                    if time.monotonic() > until or one.count >= options.count / parts / len(chosen):
                        break
        report.seconds = time.monotonic() - begun
    return report


def _schedules(
    one: Explorer, generator: random.Random, part: int, parts: int, options: argparse.Namespace
) -> Iterator[tuple[str, Outcome]]:
    """Run schedules of each kind in turn."""
    names = usable(one.state)
    kinds = {
        "pairs": _pairs(one, list(pairs(names))[part::parts], generator, options.preemptions),
        "random": _random(one, names, generator),
    }
    running = [kinds[kind] for kind in options.kinds]
    while running:
        for kind in list(running):
            if found := next(kind, None):
                yield found
            else:
                running.remove(kind)


def _pairs(
    one: Explorer, chosen: list[tuple[str, str]], generator: random.Random, preemptions: int
) -> Iterator[tuple[str, Outcome]]:
    generator.shuffle(chosen)
    explored = [Pair(one, pair) for pair in chosen]
    for count in range(preemptions + 1):
        for pair in explored:
            for outcome in pair.run():
                yield f"pairs with {count} preemptions", outcome


def _random(one: Explorer, names: list[str], generator: random.Random) -> Iterator[tuple[str, Outcome]]:
    while True:
        operations = tuple(generator.choices(names, k=generator.choice((2, 3, 3, 4))))
        yield f"random, {len(operations)} sessions", one.run(prioritized(one, operations, generator))


def explore(options: argparse.Namespace) -> Report:
    report = Report()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        directories = [Path(mkdtemp(prefix="headrace-schedules-", dir=options.directory)) for _ in range(options.jobs)]
        parts = [(directory, part, options.jobs, options) for part, directory in enumerate(directories)]
        for result in pool.starmap(work, parts):
            report.merge(result)
    return report


def find_planted(names: list[str], seed: int, seconds: float) -> Iterator[tuple[planted.Bug, planted.Found]]:
    """Look for planted bugs, one after the other. All by default."""
    unknown = set(names) - {bug.name for bug in planted.BUGS}
    if unknown:
        raise LookupError(f"unknown: {sorted(unknown)}")
    with server() as dsn:
        for bug in planted.BUGS:
            if not names or bug.name in names:
                with explorer(dsn, bug.state, partial(planted.plant, bug)) as one:
                    yield bug, planted.find(one, bug, seed, seconds)


def table(rows: Iterable[tuple[planted.Bug, planted.Found]]) -> Iterator[str]:
    """Return a table of what was found, in Markdown."""
    yield "| planted bug | it breaks | found after | by the schedule |"
    yield "| --- | --- | --- | --- |"
    for bug, found in rows:
        yield f"| {bug.name} | {bug.promise} | {found.schedules:,} | {f'`{found.schedule}`' if found.schedule else 'NOT FOUND'} |"
