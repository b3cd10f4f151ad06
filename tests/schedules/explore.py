"""Explore the schedules of operations: all up to three preemptions for two of them, random priorities beyond."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.schedules import invariants, states
from tests.schedules.log import Log, State
from tests.schedules.operations import publish_sql
from tests.schedules.operators import OPERATIONS
from tests.schedules.schedules import Actor, Leg, Runner, Schedule
from tests.schedules.sessions import Failed, Session


@dataclass
class Outcome:
    """What a schedule has led to."""

    schedule: Schedule
    passed: list[int]
    """For each session, how many gates it passed."""
    violations: list[str]
    stuck: bool = False
    """Whether the schedule could not be run to its end, which says nothing about the promises."""


@dataclass
class Explorer:
    """Runs schedules of one state, and checks what they led to."""

    state: states.State
    runner: Runner
    count: int = 0
    _drained: set[bytes] = field(default_factory=set)
    """The final states from which all that was left came in its order. They are as many as schedules, so digests."""
    _initial: State | None = None
    _done: set[int] = field(default_factory=set)
    """The messages that are settled at the start."""

    def run(self, schedule: Schedule) -> Outcome:
        controller = self.runner.controller
        if self.count % 500 == 0:
            controller.execute("select gate.restore()")
            vacuum(controller)
        self.count += 1
        operations = [OPERATIONS[name] for name in schedule.operations]
        if self._initial is None:
            controller.execute("select gate.restore()")
            self._initial = json.loads(controller.value("select gate.state()"))
            done = {seq for seq, *_ in self._initial["messages"]} - set(invariants.pending(self._initial))
            self._done = done - {row[0] for row in self._initial["dead"]}
        log = Log(controller, dict(self.state.leases), self._initial, known=self._initial, settled=set(self._done))
        log.operations = frozenset(schedule.operations)
        log.tolerated = frozenset().union(*(operation.elsewhere for operation in operations))
        log.filled = 2 * any(operation.prelude for operation in operations)
        log.stored = len(self._initial["messages"]) + log.filled
        try:
            actors = self.runner.run(schedule, operations, log, _FILL)
            violations = log.violations + list(self._check(log, actors))
        except (Failed, TimeoutError) as error:
            self.runner.restart()
            return Outcome(schedule, [0] * len(operations), [f"a call that the scheduler made fails: {error}"], True)
        return Outcome(schedule, [actor.passed for actor in actors], violations)

    def _check(self, log: Log, actors: Sequence[Actor]) -> Iterator[str]:
        log.uncertain = any(actor.was_cut for actor in actors)
        state = log.state()
        if state is None:  # no transaction is open, so nothing is locked
            if not log.rewound or not log.uncertain:
                yield "the stream is gone"
            return
        found = list(invariants.check(state, log))
        for delivery in log.deliveries:
            found += invariants.check_delivery(delivery, log)
        if not found and state["consumer"]:
            digest = _digest(state, log)
            if digest not in self._drained:
                found += invariants.drain(log.controller, state, log)
            if not found:
                self._drained.add(digest)
        yield from found


def _digest(state: State, log: Log) -> bytes:
    """Return a digest of all that decides what lease calls deliver from now on, and whether that is right.

    The transactions that the cursor names have ended, so which ones they were means nothing.
    """
    cursor = {
        name: bool(value) if name in ("mark_stamp", "holders") else value for name, value in state["cursor"].items()
    }
    text = repr(({**state, "cursor": cursor, "effects": None}, {seq for _, seq in log.acks()}, log.rewound))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def vacuum(controller: Session) -> None:
    """Remove the dead rows of the schedules before."""
    for table in ("cursors", "leases", "parked", "tails", "dead_letters", "consumers", "acks", "streams"):
        controller.execute(f"vacuum headrace_internal.{table}")
    controller.execute("vacuum headrace_streams.orders")


_FILL = f"{publish_sql('a', 'b')}"


@dataclass
class Pair:
    """The schedules of two operations, by their number of preemptions. The end of a session, or its wait for a lock, is none."""

    explorer: Explorer
    operations: tuple[str, str]
    _next: list[tuple[Leg, ...]] = field(default_factory=lambda: [(Leg(0, 0),), (Leg(1, 0),)])

    def run(self) -> Iterator[Outcome]:
        """Run all schedules with one preemption more than the last time, beginning with none."""
        chosen, self._next = self._next, []
        for legs in chosen:
            outcome = self.explorer.run(Schedule(self.explorer.state.name, self.operations, legs))
            *before, last = legs
            passed = max((leg.gate for leg in before if leg.session == last.session), default=0)
            self._next += [
                (*before, Leg(last.session, gate), Leg(1 - last.session, 0))
                for gate in range(passed + 1, outcome.passed[last.session] + 1)
            ]
            yield outcome


def prioritized(
    explorer: Explorer, operations: tuple[str, ...], generator: random.Random, preemptions: int = 3
) -> Schedule:
    """Return a schedule by random priorities (PCT: Burckhardt et al., ASPLOS 2010), some with a cut.

    The session of the highest priority runs, and at random gates it falls to the lowest.
    """
    order = list(range(len(operations)))
    generator.shuffle(order)
    legs: list[Leg] = []
    passed = [0] * len(operations)
    for _ in range(generator.randint(1, preemptions + len(operations) - 2)):
        session = order[0]
        passed[session] += generator.randint(1, 14)
        cut = generator.choice(("", "", "", "", "", "", "", "x", "x", "k" if generator.random() < 0.02 else "x"))
        legs.append(Leg(session, passed[session], cut))
        order = [*order[1:], session]
        if generator.random() < 0.3:
            order.insert(0, order.pop(generator.randrange(1, len(order))))
    return Schedule(explorer.state.name, operations, (*legs, *(Leg(session, 0) for session in order)))


def shrunk(explorer: Explorer, schedule: Schedule) -> Schedule:
    """Return a schedule with fewer legs and operations that still violates an invariant."""
    smaller = True
    while smaller:
        smaller = False
        for place in range(len(schedule.legs)):
            fewer = schedule._replace(legs=schedule.legs[:place] + schedule.legs[place + 1 :])
            if explorer.run(fewer).violations:
                schedule, smaller = fewer, True
                break
    return schedule


def pairs(operations: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from ((first, second) for place, first in enumerate(operations) for second in operations[place:])
