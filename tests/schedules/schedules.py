"""A schedule: which session runs up to which gate, in which order. And how it is run.

The line of a schedule repeats it exactly: `quiet ack+lease_bob A5 B7 A` is the state that it starts from, its
operations, which are the sessions A, B, … in this order, and its legs. In a leg a session runs up to a gate, by number.
`A5x` cuts its transaction there, `A5k` terminates its backend, and `A5c` crashes the server. After the last leg the sessions run to their ends.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.schedules.log import Log
from tests.schedules.operations import REPLACED, Operation, Steps
from tests.schedules.sessions import Failed, Session

_CLASS = 46000


class Leg(NamedTuple):
    """A session runs up to a gate. `cut` is empty, `x` for a transaction that is cut there, `k` for a backend, `c` for the server."""

    session: int
    gate: int
    cut: str = ""

    def __str__(self) -> str:
        return f"{chr(65 + self.session)}{self.gate or ''}{self.cut}"


class Schedule(NamedTuple):
    state: str
    operations: tuple[str, ...]
    legs: tuple[Leg, ...]

    def __str__(self) -> str:
        return " ".join([self.state, "+".join(self.operations), *map(str, self.legs)])


def parse(line: str) -> Schedule:
    """Return the schedule of a line. Raises `ValueError` if it is none."""
    state, operations, *legs = line.split()
    found = [re.fullmatch(r"([A-Z])(\d*)([xkc]?)", leg) for leg in legs]
    if None in found:
        raise ValueError(f"{line!r} has a leg that is none: write a session, a gate and perhaps x, k or c, as in A12x.")
    return Schedule(
        state,
        tuple(operations.split("+")),
        tuple(Leg(ord(m[1]) - 65, int(m[2] or 0), m[3]) for m in found if m),
    )


@dataclass
class Actor:
    """An operation in its session."""

    number: int
    operation: Operation
    session: Session
    steps: Steps
    log: Log
    passed: int = 0
    """The number of the last gate at which it stood."""
    done: bool = False
    blocked: bool = False
    error: str = ""
    was_cut: bool = False
    start: str = ""
    """What its first call begins with."""
    pending: str | None = None
    """The call that it makes next."""

    @property
    def at_gate(self) -> bool:
        return self.session.gate is not None

    def finish_call(self) -> None:
        """Let the operation take in what its call returned, and prepare its next one."""
        try:
            try:
                _, *rows, passed = self.session.results()
                self.passed = int(passed[0][1] or 0) - 1
                self.start = ""
            except Failed as error:
                self.pending = self.steps.throw(error)
            else:
                self.pending = self.steps.send(rows)
        except StopIteration:
            self.done = True
        except Failed as failed:
            self.done = True
            self.error = failed.state
            allowed = self.operation.allowed | self.log.tolerated
            deadlock = failed.state == "40P01" and self.log.may_deadlock
            missing = failed.state in REPLACED and self.log.may_miss_a_segment
            if failed.state not in allowed and not deadlock and not missing and not self.was_cut:
                self.log.violation(f"{self.operation.name} fails: {failed}")


class Runner:
    """Runs schedules on a database whose functions have gates."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._sessions: list[Session] = []
        self.controller = self._control()

    def _control(self) -> Session:
        controller = Session(self._dsn)
        controller.execute("set client_min_messages = error; set session_replication_role = replica")
        return controller

    def restart(self) -> None:
        """End all sessions, whatever they are at, and begin with new ones."""
        pids = [self.controller.pid, *(session.pid for session in self._sessions)]
        self.close()
        self._sessions = []
        self.controller = self._control()
        self.controller.execute("; ".join(f"select pg_terminate_backend({pid}, 10000)" for pid in pids))

    def sessions(self, count: int) -> list[Session]:
        for place, session in enumerate(self._sessions):
            if not session.alive:
                self._sessions[place] = self._open()
        while len(self._sessions) < count:
            self._sessions.append(self._open())
        return self._sessions[:count]

    def _open(self) -> Session:
        session = Session(self._dsn)
        session.execute("set deadlock_timeout = '20ms'; create temp sequence passed")
        return session

    def close(self) -> None:
        for session in [self.controller, *self._sessions]:
            session.close()

    def run(self, schedule: Schedule, operations: Sequence[Operation], log: Log, fill: str = "") -> list[Actor]:
        """Run a schedule. The database is in the state that it starts from.

        Args:
            schedule: the legs.
            operations: those of the sessions, in their order.
            log: what the operations write.
            fill: what is executed after the preludes of the operations.
        """
        sessions = self.sessions(len(operations))
        actors = [
            Actor(n, operation, session, operation.steps(log), log)
            for n, (operation, session) in enumerate(zip(operations, sessions, strict=True))
        ]
        stops = [(leg.session, leg.gate) for leg in schedule.legs if leg.gate]
        locks = "".join(f", pg_advisory_lock({_CLASS + session}, {gate})" for session, gate in stops)
        self.controller.execute(f"select pg_advisory_unlock_all(){locks}, gate.restore()")
        for actor in actors:
            chosen = "".join(f",{gate}" for session, gate in stops if session == actor.number)
            actor.session.gate = None
            actor.start = f"gate.begin_schedule({actor.number}, '{chosen},'), "
            if actor.operation.prelude:
                actor.session.execute("; ".join(["set gate.session = ''", *actor.operation.prelude]))
        if any(actor.operation.prelude for actor in actors):
            self.controller.execute(fill)
            log.changed()
        for leg in schedule.legs:
            if leg.session < len(actors):
                self._run_leg(actors[leg.session], actors, leg)
        while not all(actor.done for actor in actors):
            if ready := [actor for actor in actors if not actor.done and not actor.blocked]:
                self._advance(ready[0], actors)
            else:
                self._wait_blocked(actors)
        for actor in actors:
            if actor.session.alive and actor.session.in_transaction:
                actor.session.execute("rollback")
        return actors

    def _run_leg(self, actor: Actor, actors: list[Actor], leg: Leg) -> None:
        while not actor.done and not actor.blocked and (actor.passed < leg.gate or not leg.gate):
            self._advance(actor, actors)
        if leg.cut and not actor.done and actor.at_gate:
            if leg.cut == "c":
                self._crash(actor, actors)
            else:
                self._cut(actor, leg.cut)
            self._watch_blocked(actors)

    def _advance(self, actor: Actor, actors: list[Actor]) -> None:
        """Let an actor run until its next stop, the end of its call, or until it waits for another one's lock."""
        session = actor.session
        if session.gate is None and not session.running and actor.pending is None:
            actor.pending = next(actor.steps)
        actor.log.changed()
        if session.gate is not None:
            lock = session.gate[1]
            session.gate = None
            self.controller.execute(f"select pg_advisory_unlock({_CLASS + actor.number}, {lock})")
        elif not session.running:
            session.send(f"select {actor.start}gate.pass(); {actor.pending}; select gate.pass(), gate.passed()")
        self._watch(actor, actors)
        if not actor.blocked:
            self._watch_blocked(actors)

    def _watch_blocked(self, actors: list[Actor]) -> None:
        """Let those run on whose lock was freed meanwhile."""
        for actor in actors:
            if actor.blocked:
                self._watch(actor, actors)

    def _wait_blocked(self, actors: list[Actor]) -> None:
        """Wait until one of the sessions has its lock, or has failed, where all wait for locks. Postgres ends a deadlock."""
        until = time.monotonic() + 30
        while (waiting := [actor for actor in actors if not actor.done]) and all(actor.blocked for actor in waiting):
            self._watch_blocked(actors)
            if time.monotonic() > until:
                raise TimeoutError("all sessions wait for locks, and none gets its own")

    def _watch(self, actor: Actor, actors: list[Actor]) -> None:
        """Wait until an actor stops, has finished a call, or waits for a lock of another one."""
        seconds = 0.001
        for _ in range(300):
            if actor.session.wait(0 if actor.blocked else seconds):
                self._unblock(actor)
                actor.log.changed()
                if actor.session.gate is None:
                    actor.finish_call()
                else:
                    actor.passed = actor.session.gate[0]
                return
            if (seconds > 0.05 or actor.session.sleeps()) and self._is_blocked(actor, actors):
                if not actor.blocked:
                    actor.blocked = True
                    self.controller.execute(f"select pg_advisory_lock({_CLASS + actor.number}, 0)")
                return
            self._unblock(actor)
            seconds = min(seconds * 2, 0.1)
        raise TimeoutError(f"{actor.operation.name} neither stops nor ends")

    def _is_blocked(self, actor: Actor, actors: list[Actor]) -> bool:
        """Whether a session waits for a lock of another one."""
        others = ",".join(str(other.session.pid) for other in actors if other is not actor)
        return bool(
            self.controller.value(f"select pg_blocking_pids({actor.session.pid}) && '{{{others}}}'::int[]") == "t"
        )

    def _unblock(self, actor: Actor) -> None:
        if actor.blocked:
            actor.blocked = False
            if actor.session.gate is None or actor.session.gate[1] != 0:
                self.controller.execute(f"select pg_advisory_unlock({_CLASS + actor.number}, 0)")

    def _cut(self, actor: Actor, cut: str) -> None:
        pid = actor.session.pid
        actor.was_cut = True
        actor.session.gate = None
        self.controller.execute(f"select {'pg_cancel_backend' if cut == 'x' else 'pg_terminate_backend'}({pid})")
        actor.session.wait(60)
        actor.finish_call()
        actor.done = True

    def _crash(self, actor: Actor, actors: list[Actor]) -> None:
        """Crash the server: Postgres ends all backends if one is killed, and recovers from what it has written of the WAL."""
        os.kill(actor.session.pid, signal.SIGKILL)
        for one in actors:
            one.was_cut, one.blocked, one.session.gate = True, False, None
            if one.session.running:
                one.session.wait(60)
                one.finish_call()
            one.done = True
        # The server ends these before it refuses new connections.
        for session in [self.controller, *self._sessions]:
            session.wait_for_end()
        self.close()
        self._sessions = []
        self.controller = actor.log.controller = self._recovered()
        self.controller.execute("select headrace_internal.begin_timeline()")  # as the first client does
        actor.log.changed()

    def _recovered(self) -> Session:
        """Return a new session of the scheduler, as soon as the server has recovered."""
        until = time.monotonic() + 60
        while True:
            try:
                return self._control()
            except ConnectionError:
                if time.monotonic() > until:
                    raise
                select.select([], [], [], 0.02)
