"""Many schedules, in several processes."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import re
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
from typing import Any

from tests.schedules import planted, states
from tests.schedules.explore import Explorer, Outcome, Pair, pairs, prioritized
from tests.schedules.operators import OPERATIONS
from tests.schedules.schedules import Leg, Runner, Schedule
from tests.support import servers

CATALOG = 2000
"""One schedule of this many changes the catalog, since such a schedule takes so long."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass
class Violation:
    """A violation of one kind, as it was seen first."""

    text: str
    line: str
    """The schedule, which repeats it."""
    count: int = 1

    @property
    def kind(self) -> str:
        """The text without its numbers."""
        return re.sub(r"\d+(, \d+)*", "N", self.text)


@dataclass
class Report:
    """What was run, and what was found."""

    kinds: Counter[str] = field(default_factory=Counter)
    violations: dict[str, Violation] = field(default_factory=dict)
    """By their kind."""
    seconds: float = 0.0

    def add(self, kind: str, outcome: Outcome) -> None:
        self.kinds[kind] += 1
        self.kinds["cut"] += any(leg.cut for leg in outcome.schedule.legs)
        for text in outcome.violations:
            found = Violation(text, str(outcome.schedule))
            if found.kind not in self.violations:
                print(f"{text}\n    {found.line}", file=sys.stderr, flush=True)
            self._add(found)

    def merge(self, other: Report) -> None:
        self.kinds.update(other.kinds)
        self.seconds = max(self.seconds, other.seconds)
        for violation in other.violations.values():
            self._add(violation)

    def _add(self, violation: Violation) -> None:
        if known := self.violations.get(violation.kind):
            known.count += violation.count
        else:
            self.violations[violation.kind] = violation

    def lines(self) -> Iterator[str]:
        total = sum(count for kind, count in self.kinds.items() if kind != "cut")
        yield f"{total:,} schedules in {self.seconds:.0f} s, {total / max(self.seconds, 0.1):.0f} a second"
        yield from (f"  {count:>9,} {kind}" for kind, count in sorted(self.kinds.items()))
        yield f"{len(self.violations)} kinds of violations"
        yield from (f"  {one.count:,} times: {one.text}\n    {one.line}" for one in self.violations.values())


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
            servers.reconnect(dsn)


def usable(state: states.State, catalog: bool = False) -> list[str]:
    """The operations that make sense in a state: an owner settles what it has. Where a key has one message, a transaction
    that is open beforehand would hold up all others. Those that change the catalog are apart."""
    return [
        name
        for name, one in OPERATIONS.items()
        if one.is_catalog == catalog
        and (one.owner is None or one.owner in state.leases)
        and not (one.prelude and state.name.startswith("compacted"))
    ]


_progress: Any = None
"""How many schedules all workers have run, and how many violated something: an array in shared memory, or none."""


def _share_progress(progress: Any) -> None:
    global _progress
    _progress = progress


def work(directory: Path, part: int, options: argparse.Namespace) -> Report:
    """Run one part of the schedules, on a server of its own."""
    report = Report()
    chosen = sorted(options.states)
    with server(directory) as dsn:
        begun = time.monotonic()
        for place, name in enumerate(chosen):
            # Each part and state has its share of the time, and of the count.
            until = begun + options.seconds * (place + 1) / len(chosen) if options.seconds else float("inf")
            shares, share = options.jobs * len(chosen), part * len(chosen) + place
            count = options.count * (share + 1) // shares - options.count * share // shares
            if options.count and not count:
                continue
            with explorer(dsn, name) as one:
                generator = random.Random(f"{options.seed} {name} {part}")
                for number, (kind, outcome) in enumerate(_schedules(one, generator, part, options), 1):
                    report.add(kind, outcome)
                    with _progress.get_lock():
                        _progress[0] += 1
                        _progress[1] += bool(outcome.violations)
                    if time.monotonic() > until or number == count:
                        break
                    if (parent := multiprocessing.parent_process()) and not parent.is_alive():
                        return report
        report.seconds = time.monotonic() - begun
    return report


def _schedules(
    one: Explorer, generator: random.Random, part: int, options: argparse.Namespace
) -> Iterator[tuple[str, Outcome]]:
    """Run schedules of each kind in turn."""
    names = usable(one.state)
    kinds = {
        "pairs": _pairs(one, list(pairs(names))[part :: options.jobs], generator, options.preemptions),
        "random": _random(one, names, generator),
        "catalog": _catalog(one, names, generator),
        "crash": _crashes(one, names, generator),
    }
    running = [kinds[kind] for kind in options.kinds]
    for turn in itertools.count():
        for kind in list(running):
            if kind is kinds["catalog"] and turn % CATALOG and len(running) > 1:
                continue
            if found := next(kind, None):
                yield found
            else:
                running.remove(kind)
        if not running:
            return


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


def _catalog(one: Explorer, names: list[str], generator: random.Random) -> Iterator[tuple[str, Outcome]]:
    """Random schedules of an operation that changes the catalog, beside one or two others."""
    changing = usable(one.state, catalog=True)
    while True:
        operations = (generator.choice(changing), *generator.choices(names + changing, k=generator.choice((1, 2))))
        yield "deletions of the stream and upgrades", one.run(prioritized(one, operations, generator))


def _crashes(one: Explorer, names: list[str], generator: random.Random) -> Iterator[tuple[str, Outcome]]:
    """Crash the server at each gate of each operation, then at random gates of two."""
    for name in generator.sample(names, len(names)):
        alone = one.run(Schedule(one.state.name, (name,), ()))
        yield "crashes of one session", alone
        for gate in range(1, alone.passed[0] + 1):
            yield "crashes of one session", one.run(alone.schedule._replace(legs=(Leg(0, gate, "c"),)))
    while True:
        legs = tuple(Leg(session, generator.randint(1, 20), cut) for session, cut in ((0, ""), (1, "c"), (0, "c")))
        yield "crashes of two sessions", one.run(Schedule(one.state.name, tuple(generator.choices(names, k=2)), legs))


def explore(options: argparse.Namespace) -> Report:
    """Run schedules until a time or a count, and write a line of progress each minute."""
    report = Report()
    context = multiprocessing.get_context("spawn")
    progress = context.Array("q", 2)
    with context.Pool(options.jobs, _share_progress, (progress,)) as pool:
        directories = [Path(mkdtemp(prefix="headrace-schedules-", dir=options.directory)) for _ in range(options.jobs)]
        working = pool.starmap_async(work, [(directory, part, options) for part, directory in enumerate(directories)])
        begun = time.monotonic()
        while not working.ready():
            working.wait(60)
            minutes = (time.monotonic() - begun) / 60
            print(
                f"{minutes:.0f} min: {progress[0]:,} schedules, {progress[1]:,} with violations",
                file=sys.stderr,
                flush=True,
            )
        for result in working.get():
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
