"""Small schedules: what each peer does when something goes wrong, as seen in one run.

A schedule returns a sentence of what was seen. It judges nothing: a system that promises less than another one is not
broken by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import msgspec

from benchmarks.peers import measuring, runs
from benchmarks.peers.catalog import Peer
from benchmarks.peers.children import PeerFailed, wait_for
from benchmarks.peers.comparing import error_line
from benchmarks.peers.jobs import SMALL_NOTE, Job
from benchmarks.peers.runs import Effort, Run
from benchmarks.peers.servers import Templates

TIMEOUT = 2.0
"""The visibility timeout of the schedules, in seconds, where a peer has one."""
LIMIT = 45.0
"""Seconds for something to happen."""
QUIET = 1.5
"""Seconds without a message after which a worker is as far as it gets."""

VISIBILITY: dict[str, dict[str, Any]] = {
    "headrace": {"ack_wait": TIMEOUT},
    "pgmq": {"vt": int(TIMEOUT)},
    "procrastinate": {"stalled_seconds": TIMEOUT},
    "pgqueuer": {"heartbeat_seconds": TIMEOUT},
    "awa": {"heartbeat_stale_ms": int(TIMEOUT * 1000)},
    "oban": {"rescue_seconds": TIMEOUT},
    "absurd": {"claim_seconds": int(TIMEOUT)},
    "pgboss": {"expire_seconds": int(TIMEOUT), "supervise_seconds": 1},
    "redis": {"claim_ms": int(TIMEOUT * 1000)},
    "nats": {"ack_wait": TIMEOUT},
}
"""The settings of each peer that say when another worker may take a message, by the peer's adapter."""


class Stage(msgspec.Struct, frozen=True):
    """The means of a schedule: the peer, and how a run is opened.

    Attributes:
        restart: crashes Postgres and starts it. None for a server that is not ours.
    """

    peer: Peer
    templates: Templates
    launch: dict[str, Any]
    restart: Callable[[], None] | None

    def effort(self, count: int) -> Effort:
        return Effort(seconds=1.0, count=count, later=0, later_seconds=0, processes=1, limit=3 * LIMIT)

    def open(self, job: Job) -> AbstractContextManager[Run]:
        return runs.opened(self.peer, job, self.effort(0), self.templates, self.launch)


def overtaken(stage: Stage) -> str:
    """a retry, and later messages of its key"""
    with stage.open(_job("fail", keys=1)) as run:
        _publish(run, 0, 3, batch=1)
        run.launch(1)
        run.ready()
        run.consume()
        if not run.wait(3, LIMIT / 2):
            return f"{run.handled} of 3 were handled within {LIMIT / 2:.0f} s"
        numbers = [entry.number for entry in run.stop()[0]]
    firsts = list(dict.fromkeys(numbers))
    if firsts == sorted(firsts):
        return "the later messages waited for the retry"
    return f"{firsts.index(0)} later messages overtook the retry"


def killed(stage: Stage) -> str:
    """a worker killed between two acks"""
    with stage.open(_job("hold", keys=3, ordered=False)) as run:
        _publish(run, 0, 3, batch=3)
        run.launch(1)
        run.ready()
        run.consume(held=1)
        run.wait(2, LIMIT / 3)
        time.sleep(QUIET)
        run.consumers[0].kill()
        start = time.monotonic()
        run.launch(1)
        run.ready()
        run.consume(mode="noop")
        child = run.consumers[0]
        came = wait_for(lambda: child.handled > 0, LIMIT)
        took = time.monotonic() - start
        time.sleep(QUIET)
        again = sorted({entry.number for entry in run.stop()[0]})
    if not came:
        return f"the unfinished message was not handled again within {LIMIT:.0f} s"
    finished = [number for number in again if number != 1]
    rest = f", and {len(finished)} of the 2 finished ones with it" if finished else ", and no finished one"
    return f"the unfinished message was handled again after {took:.0f} s{rest}"


def blocked(stage: Stage) -> str:
    """a key whose handler hangs, and its neighbours"""
    with stage.open(_job("hold", keys=10)) as run:
        _publish(run, 0, 100, batch=100)
        run.launch(1)
        run.ready()
        run.consume()
        run.wait(100, QUIET)
        _publish(run, 100, 100, batch=100)
        run.wait(200, 2 * QUIET)
        released = time.monotonic_ns()
        run.ask(run.consumers[0], "release")
        run.wait(200, LIMIT / 3)
        before = {entry.number for entry in run.stop()[0] if entry.number > 0 and entry.at < released}
    followers = {number for number in range(1, 200) if number % 10 == 0}  # key 0 has every tenth message
    passed = sum(number < 100 for number in before - followers), sum(number >= 100 for number in before - followers)
    return (
        f"of other keys, {passed[0]} of 90 messages were handled beside it, and {passed[1]} of 90 published after it;"
        f" {len(before & followers)} of {len(followers)} later ones of the key"
    )


def late(stage: Stage) -> str:
    """a commit that comes late"""
    with stage.open(_job("noop", keys=2, ordered=False)) as run:
        waits = run.ask(run.publisher, "late", first=0, keys=2, note=SMALL_NOTE)["waits"]
        run.launch(1)
        run.ready()
        run.consume()
        passed = waits or run.wait(1, LIMIT / 3)
        time.sleep(QUIET)
        run.ask(run.publisher, "commit")
        start = time.monotonic()
        came = run.wait(2, LIMIT / 2)
        took = time.monotonic() - start
        run.stop()
    before = "" if passed else "the later message waited; "
    if waits:
        before = "the later publish waited for the open transaction; "
    return f"{before}{'handled' if came else 'NOT handled'} within {took:.1f} s after the commit"


def late_ack(stage: Stage) -> str:
    """an ack after the visibility timeout"""
    if stage.peer.adapter.partition(".")[0] not in VISIBILITY:
        return "it has no such timeout"
    with stage.open(_job("slow", keys=1, ordered=False)) as run:
        _publish(run, 0, 1, batch=1)
        run.launch(2)
        run.ready()
        run.consume(seconds=3 * TIMEOUT)
        run.wait(1, LIMIT / 2)
        time.sleep(2 * TIMEOUT)
        entries = run.stop()[0]
    begun = [entry.at for entry in entries if entry.number >= 0]
    ended = [entry.at for entry in entries if entry.number < 0]
    if len(begun) == 1:
        return f"handled once: the handler took {3 * TIMEOUT:.0f} s with a timeout of {TIMEOUT:.0f} s"
    beside = sum(at < min(ended, default=at + 1) for at in begun[1:])
    return f"handled {len(begun)} times, {beside} of them while the first one still ran"


def restart(stage: Stage) -> str:
    """a server that crashes in the middle"""
    if stage.peer.loop:
        return "its worker is a loop of the user, which connects again or doesn't"
    if stage.restart is None:
        return "not run: the server is not ours to crash"
    with stage.open(_job("hold", keys=10, ordered=False)) as run:
        _publish(run, 0, 100, batch=100)
        run.close_publisher()
        run.launch(1)
        run.ready()
        run.consume()
        run.wait(99, QUIET)
        stage.restart()
        child = run.consumers[0]
        with suppress(PeerFailed):  # it may have ended
            child.send("release")
        run.publisher.close()
        run.publisher = run.start()
        _publish(run, 100, 100, batch=100)
        came = wait_for(lambda: child.handled >= 200 or bool(child.died), LIMIT)
        if child.died:
            return f"its worker ended, and has to be started again: {error_line([child.died])}"
        time.sleep(QUIET)
        numbers = [entry.number for entry in run.stop()[0] if entry.number >= 0]
    handled, again = len(set(numbers)), len(numbers) - len(set(numbers))
    if not came and handled < 200:
        return f"{handled} of 200 messages were handled within {LIMIT:.0f} s"
    return f"all 200 messages were handled, {again} of them again"


def snapshot(stage: Stage) -> str:
    """a snapshot that is held"""
    if reason := stage.peer.cannot.get("snapshot"):
        return reason
    alone = _job("noop", keys=100_000, ordered=False)
    measure = partial(measuring.measure, stage.peer, templates=stage.templates, launch=stage.launch)
    rate = measure(alone, effort=stage.effort(2000)).rate
    count = int(max(2000, min(50_000, 2 * rate)))
    rates = {True: 0.0, False: 0.0}
    for held in (False, True, True, False):
        job = msgspec.structs.replace(alone, snapshot=held)
        rates[held] += measure(job, effort=stage.effort(count)).rate
    return f"drained {count:,} messages at {rates[True] / rates[False]:.2f} of the rate without it"


SCHEDULES: dict[str, Callable[[Stage], str]] = {
    "overtaken": overtaken,
    "killed": killed,
    "blocked": blocked,
    "late": late,
    "late-ack": late_ack,
    "restart": restart,
    "snapshot": snapshot,
}


def _job(mode: Any, *, keys: int, ordered: bool = True) -> Job:
    return Job(title="a schedule", mode=mode, keys=keys, ordered=ordered)


def _publish(run: Run, first: int, count: int, batch: int) -> None:
    run.publish(first, count, LIMIT, batch)
