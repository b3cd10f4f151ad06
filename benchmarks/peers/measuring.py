"""One run of each kind of job, and what it found."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from benchmarks.peers import judging, servers
from benchmarks.peers.catalog import Peer
from benchmarks.peers.children import PeerFailed
from benchmarks.peers.jobs import Job
from benchmarks.peers.judging import Entry, Verdict
from benchmarks.peers.readings import Reading, Stored
from benchmarks.peers.runs import Effort, Run, opened
from benchmarks.peers.servers import Templates
from benchmarks.timing import milliseconds

WARM_UP = 1.0
"""Seconds of a pace that are not measured."""
FIRST_PART = 10
"""Of a backlog, the processor time of the first of so many parts is not measured: workers start in it."""
STALL = 2.0
"""Seconds without a message after which a backlog beside a blocked key is as far as it gets."""
LATER = 86_400.0
"""Seconds until the messages of `later` are due."""
LATER_FIRST = 1_000_000_000
"""Their first number."""
LATER_BATCH = 1000


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The findings of one run. Times are in microseconds for each message, or in milliseconds where the name says so."""

    rate: float
    messages: int
    client_us: float = 0.0
    publisher_us: float = 0.0
    server_us: float = 0.0
    wal_bytes: float | None = None
    commits: float | None = None
    dead_rows: float | None = None
    growth: float | None = None
    latency: dict[str, float] = {}
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    others: float = 0.0
    notes: list[str] = []
    settings: dict[str, Any] = {}


def measure(peer: Peer, job: Job, effort: Effort, templates: Templates, launch: Mapping[str, Any]) -> Sample:
    """Run once.

    Raises:
        PeerFailed: the peer failed, or was not done in time.
        PeerUnable: the peer can't do this.
    """
    with opened(peer, job, effort, templates, launch) as run:
        action = {"publish": _publish, "drain": _drain, "pace": _pace, "live": _live}[job.kind]
        try:
            sample = action(run)
        except PeerFailed as reason:
            handled = f", after {run.handled:,} were handled" if run.consumers else ""
            raise PeerFailed(f"{reason}{handled}") from None
        sample.notes += run.notes
        sample.settings = run.settings
        return sample


def _publish(run: Run) -> Sample:
    run.ask(run.publisher, "stored")  # with its connections open, as those of a service are
    before, start = run.place.written(), run.read(run.publisher)
    done = run.publish(0, 10**9, run.effort.seconds, run.job.batch)
    used = run.read(run.publisher).since(start)
    run.close_publisher()
    written = run.place.written()
    count = done["count"]
    stored = run.ask(run.publisher, "stored")["stored"]
    sample = _sample(count / ((done["end"] - done["start"]) / 1e9), count, used, before, written)
    sample.lost = max(0, count - stored)
    return sample


def _drain(run: Run) -> Sample:
    job, count = run.job, run.effort.count
    with ExitStack() as stack:
        if job.snapshot:
            stack.callback(servers.Snapshot(run.place.dsn).close)
        if job.later:
            _fill_later(run)
        run.launch((os.cpu_count() or 1) if job.per_core else run.effort.processes)
        if run.publish(0, count, run.effort.limit, 100)["count"] != count:
            raise PeerFailed("the backlog was not published in time")
        run.close_publisher()
        run.ready()
        run.analyze()
        before, start = run.place.written(), run.read(*run.consumers)
        run.consume()
        warm, first = run.after_start(-(-count // FIRST_PART))
        if first < count:
            start = warm
        else:  # it was one batch
            first = 0
        passed = count
        if job.mode == "hold":
            run.wait(count, STALL)
            passed = run.handled
            for child in run.consumers:
                run.ask(child, "release")
        if not run.wait(count):
            run.notes.append(f"{run.handled:,} of {count:,} were handled")
        run.settle()
        settled, end = time.monotonic_ns(), run.read(*run.consumers)
        observed = run.stop()[0]
        run.close_publisher()
        written = run.place.written()
    used = end.since(start)
    verdict = judging.judge(observed, count, job.keys)
    if not observed:
        raise PeerFailed("nothing was handled")
    if job.mode == "hold":
        return _beside_a_blocked_key(
            run, observed, passed, _judged(_sample(0.0, count, used, before, written, first), verdict)
        )
    rate = verdict.handled / ((settled - observed[0].at) / 1e9)
    sample = _judged(_sample(rate, count, used, before, written, first), verdict)
    if job.mode == "effect":
        _count_effects(run, sample, count)
    return sample


def _fill_later(run: Run) -> None:
    done = run.publish(LATER_FIRST, run.effort.later, run.effort.later_seconds, LATER_BATCH, delay=LATER)
    run.notes.append(f"beside {done['count']:,} that wait")


def _beside_a_blocked_key(run: Run, observed: list[Entry], passed: int, sample: Sample) -> Sample:
    """The rate at which the messages beside the blocked key were handled."""
    count, keys = run.effort.count, run.job.keys
    others = count - -(-count // keys)
    if passed < others // 2:
        run.notes.append(f"stands still after {passed:,} of {count:,}")
        return sample
    last = observed[min(passed, len(observed)) - 1].at
    sample.rate = passed / max(1e-9, (last - observed[0].at) / 1e9)
    run.notes.append(f"{passed:,} of {count:,} passed")
    return sample


def _pace(run: Run) -> Sample:
    job, seconds = run.job, run.effort.seconds * 2
    run.launch(run.effort.processes)
    run.ready()
    run.consume()
    pace = partial(run.ask, run.publisher, "pace", rate=job.rate, batch=job.batch, keys=job.keys, note=job.note)
    first = pace(first=0, seconds=WARM_UP)["count"]
    before, start = run.place.written(), run.read(*run.consumers)
    publishing = run.read(run.publisher)
    done = pace(first=first, seconds=seconds)
    used, published = run.read(*run.consumers).since(start), run.read(run.publisher).since(publishing)
    count = first + done["count"]
    if not run.wait(count):
        run.notes.append(f"{run.handled:,} of {count:,} were handled")
    run.settle()
    observed = run.stop()[0]
    run.close_publisher()
    written = run.place.written()
    verdict = judging.judge(observed, count, job.keys)
    latencies = [entry.at - entry.published for entry in observed if entry.number >= first]
    in_time = sum(done["start"] <= entry.at < done["end"] for entry in observed if entry.number >= 0)
    sample = _judged(_sample(in_time / seconds, done["count"], used, before, written), verdict)
    sample.publisher_us = published.client / done["count"] * 1e6
    sample.latency = milliseconds(latencies)
    if done["late_ms"] > 20:
        run.notes.append(f"the publisher was up to {done['late_ms']:.0f} ms late")
    return sample


def _live(run: Run) -> Sample:
    job = run.job
    run.launch(job.readers)
    run.ready()
    run.consume()
    first = run.publish(0, 10**9, WARM_UP / 2, job.batch)["count"]
    run.wait(first * job.readers)
    before, start = run.place.written(), run.read(run.publisher, *run.consumers)
    done = run.publish(first, 10**9, run.effort.seconds, job.batch)
    count = done["count"]
    if not run.wait((first + count) * job.readers):
        run.notes.append(f"{run.handled:,} of {(first + count) * job.readers:,} were handled")
    run.settle()
    settled, used = time.monotonic_ns(), run.read(run.publisher, *run.consumers).since(start)
    observed = run.stop()
    run.close_publisher()
    written = run.place.written()
    sample = _sample(count / ((settled - done["start"]) / 1e9), count, used, before, written)
    for reader in range(job.readers):
        _judged(sample, judging.judge(observed.get(reader, []), first + count, job.keys))
    return sample


def _sample(
    rate: float, count: int, used: Reading, before: Stored | None, after: Stored | None, first: int = 0
) -> Sample:
    """The findings of a run.

    Args:
        count: messages.
        used: processor time.
        before, after: the writes for all messages.
        first: messages that were handled before the processor time was read.
    """
    sample = Sample(
        rate=rate,
        messages=count,
        client_us=used.client / (count - first) * 1e6,
        server_us=used.server / (count - first) * 1e6,
        others=used.others,
        notes=[],
    )
    if before is not None and after is not None:
        written = after.since(before)
        sample.wal_bytes = written.wal_bytes / count
        sample.commits = written.commits / count
        sample.dead_rows = written.dead_rows / count
        sample.growth = written.size / count
    return sample


def _judged(sample: Sample, verdict: Verdict) -> Sample:
    sample.lost += verdict.lost
    sample.doubled += verdict.doubled
    sample.disordered += verdict.disordered
    return sample


def _count_effects(run: Run, sample: Sample, count: int) -> None:
    assert run.place.database is not None
    row = run.place.database.execute("select count(*), count(distinct number) from effects").fetchone()
    assert row is not None
    sample.doubled = row[0] - row[1]
    sample.lost = count - row[1]
