"""One run of a job with one peer."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers import judging, readings, servers
from benchmarks.peers.catalog import Peer
from benchmarks.peers.children import Child, PeerFailed, started
from benchmarks.peers.jobs import Job
from benchmarks.peers.judging import Entry, Verdict
from benchmarks.peers.readings import Reading, Written
from benchmarks.peers.servers import Templates
from benchmarks.timing import milliseconds

WARM_UP = 1.0
"""Seconds of a pace that are not measured."""
STALL = 1.0
"""Seconds without a message after which a backlog beside a blocked key is as far as it gets."""
SILENCE = 15.0
"""Seconds without a message after which a run has failed."""
SETUP = 60.0
"""Seconds to set a peer up."""
LATER = 86_400.0
"""Seconds until the messages of `later` are due."""
LATER_FIRST = 1_000_000_000
"""Their first number."""
LATER_BATCH = 1000


class Effort(msgspec.Struct, frozen=True):
    """How much a run does.

    Args:
        seconds: of a phase with a fixed time.
        count: messages of a backlog.
        later: messages that wait for later, at most.
        later_seconds: time to publish these, at most.
        processes: worker processes.
        limit: seconds after which a run is given up.
    """

    seconds: float
    count: int
    later: int
    later_seconds: float
    processes: int
    limit: float


class Sample(msgspec.Struct, kw_only=True):
    """What one run found. Times are in microseconds for each message, or in milliseconds where the name says so."""

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


class Run:
    """A run: its servers, its processes, and what is read at the beginning and the end of the measured part."""

    def __init__(
        self, place: servers.Place, effort: Effort, job: Job, launch: Callable[[], Child], files: Path
    ) -> None:
        self.place = place
        self.effort = effort
        self.job = job
        self.notes: list[str] = []
        self._launch = launch
        self._files = files
        self._deadline = time.monotonic() + effort.limit
        self._stack = ExitStack()
        self._traces: dict[int, list[Path]] = {}
        self.publisher = self.start()
        self.consumers: list[Child] = []

    def start(self) -> Child:
        return self._stack.enter_context(started(self._launch, self.left))

    def close(self) -> None:
        self._stack.close()

    @property
    def left(self) -> float:
        """Seconds until the run is given up."""
        if (left := self._deadline - time.monotonic()) <= 0:
            raise PeerFailed(f"not done within {self.effort.limit:.0f} s")
        return left

    def ask(self, child: Child, command: str, **arguments: Any) -> dict[str, Any]:
        return child.ask(command, self.left, **arguments)

    def publish(self, first: int, most: int, seconds: float, batch: int, **options: Any) -> dict[str, Any]:
        return self.ask(
            self.publisher, "publish", first=first, most=most, seconds=seconds, batch=batch, keys=self.job.keys,
            note=self.job.note, **options,
        )  # fmt: skip

    def ready(self, processes: int) -> None:
        """Start the worker processes, which don't consume yet."""
        self.consumers = [self.start() for _ in range(processes)]

    def consume(self) -> None:
        for number, child in enumerate(self.consumers):
            reader = number % self.job.readers
            trace = self._files / f"trace-{number}"
            self._traces.setdefault(reader, []).append(trace)
            effects = self.place.dsn if self.job.mode == "effect" else None
            self.ask(child, "consume", reader=reader, mode=self.job.mode, trace=str(trace), effects=effects)

    @property
    def handled(self) -> int:
        return sum(child.handled for child in self.consumers)

    def wait(self, expected: int, silence: float = SILENCE) -> bool:
        """Wait until so many messages were handled, over all readers. Returns False after `silence` without any."""
        seen, since = -1, time.monotonic()
        while (handled := self.handled) < expected:
            for child in self.consumers:
                if child.died:
                    raise PeerFailed(child.died)
            if handled != seen:
                seen, since = handled, time.monotonic()
            elif time.monotonic() - since > silence:
                return False
            time.sleep(min(0.005, self.left))
        return True

    def settle(self) -> None:
        """Wait until nothing is left in the database."""
        end = time.monotonic() + SILENCE
        while remaining := self.ask(self.publisher, "remaining")["remaining"]:
            if time.monotonic() > end:
                self.notes.append(f"{remaining:,} are not acked {SILENCE:.0f} s after the last handler")
                return
            time.sleep(0.01)

    def read(self, *children: Child) -> Reading:
        return readings.read([child.pid for child in children], self.place.processes)

    def stop(self) -> dict[int, list[Entry]]:
        """Stop the workers, and return what they observed, by reader."""
        for child in self.consumers:
            child.send("stop")
        for child in self.consumers:
            while child.answer(self.left).get("done") != "stop":
                pass
        return {reader: judging.entries(files) for reader, files in self._traces.items()}

    def close_publisher(self) -> None:
        """Close its connections, with which the server counts what they did."""
        self.ask(self.publisher, "close")

    def analyze(self) -> None:
        if self.place.database is not None:
            self.place.database.execute("analyze")
            if self.job.checkpoint:
                self.place.database.execute("checkpoint")


@contextmanager
def opened(peer: Peer, job: Job, effort: Effort, templates: Templates, launch: Mapping[str, Any]) -> Iterator[Run]:
    """A run with its servers and with the peer set up.

    Args:
        launch: `command`, `environment` and `settings` of the peer's program.
    """
    shape = {
        "settings": launch["settings"], "readers": job.readers, "ordered": job.ordered, "paced": job.kind == "pace",
        "transaction": job.transaction,
    }  # fmt: skip

    def child(url: str) -> Child:
        given = msgspec.json.encode({"url": url, **shape}).decode()
        return Child([*launch["command"], given], launch["environment"])

    def set_up(url: str) -> None:
        with started(partial(child, url), SETUP) as one:
            one.ask("set_up", SETUP)

    template = None
    if peer.server == "postgres":
        template = templates.name((peer.adapter, msgspec.json.encode(shape)), set_up)
    effects = job.mode == "effect"
    with (
        tempfile.TemporaryDirectory(prefix="headrace-peers-") as files,
        servers.place(peer, templates.postgres, template=template, effects=effects) as place,
    ):
        run = Run(place, effort, job, partial(child, place.url), Path(files))
        try:
            if template is None:
                run.ask(run.publisher, "set_up")
            run.ask(run.publisher, "begin")
            yield run
        finally:
            run.close()


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
        return sample


def _publish(run: Run) -> Sample:
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
        if run.publish(0, count, run.effort.limit, 100)["count"] != count:
            raise PeerFailed("the backlog was not published in time")
        run.close_publisher()
        run.ready((os.cpu_count() or 1) if job.per_core else run.effort.processes)
        run.analyze()
        before, start = run.place.written(), run.read(*run.consumers)
        run.consume()
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
            run, observed, passed, _judged(_sample(0.0, count, used, before, written), verdict)
        )
    rate = verdict.handled / ((settled - observed[0].at) / 1e9)
    sample = _judged(_sample(rate, count, used, before, written), verdict)
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
    run.ready(run.effort.processes)
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
    run.ready(job.readers)
    run.consume()
    before, start = run.place.written(), run.read(run.publisher, *run.consumers)
    done = run.publish(0, 10**9, run.effort.seconds, job.batch)
    count = done["count"]
    if not run.wait(count * job.readers):
        run.notes.append(f"{run.handled:,} of {count * job.readers:,} were handled")
    run.settle()
    settled, used = time.monotonic_ns(), run.read(run.publisher, *run.consumers).since(start)
    observed = run.stop()
    run.close_publisher()
    written = run.place.written()
    sample = _sample(count / ((settled - done["start"]) / 1e9), count, used, before, written)
    for reader in range(job.readers):
        _judged(sample, judging.judge(observed.get(reader, []), count, job.keys))
    return sample


def _sample(rate: float, count: int, used: Reading, before: Written | None, after: Written | None) -> Sample:
    sample = Sample(
        rate=rate, messages=count, client_us=used.client / count * 1e6, server_us=used.server / count * 1e6,
        others=used.others, notes=[],
    )  # fmt: skip
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
