"""All runs: the peers in turn, job after job, and each run with a limit of time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from benchmarks.peers import installing, measuring
from benchmarks.peers.catalog import PEERS, Peer
from benchmarks.peers.children import PeerUnable
from benchmarks.peers.installing import NotInstalled
from benchmarks.peers.jobs import FLUSHED, JOBS, Job
from benchmarks.peers.measuring import Sample
from benchmarks.peers.runs import Effort
from benchmarks.peers.servers import Templates

FEWEST, MOST = 200, 200_000
"""Messages of a backlog."""
PROBES = (1000, 10_000)
"""Messages of the runs that find out how many a backlog must have. The second one is for peers that are fast."""
SHORT = 0.5
"""Seconds of a probe that say too little, since the last acks count much in them."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a comparison.

    Args:
        postgres: the URL of the server.
        names: the peers.
        jobs: the jobs.
        options: settings of peers that differ from the recommended ones, by the peer's name.
        repeats: how often each job is done.
        seconds: how long the measured part of a run takes, about.
        processes: worker processes.
        later: messages that wait for later, at most.
        later_seconds: the time to publish them, at most.
        limit: seconds after which a run is given up.
        budget: seconds after which jobs are no longer repeated.
    """

    postgres: str
    names: tuple[str, ...]
    jobs: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    repeats: int
    seconds: float
    processes: int
    later: int
    later_seconds: float
    limit: float
    budget: float


class Row(msgspec.Struct, kw_only=True):
    """The results of a peer in a job. `missing` says why there are none."""

    peer: str
    job: str
    version: str = ""
    samples: list[Sample] = []
    missing: str = ""
    failures: list[str] = []


class Comparison:
    """The runs of a comparison. A peer that fails is a row with its error, and the others continue."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.interrupted = False
        self._templates = Templates(settings.postgres)
        self.rows: dict[tuple[str, str], Row] = {}
        self._launch: dict[str, dict[str, Any]] = {}
        self._missing: dict[str, str] = {}
        self._rates: dict[tuple[str, str], float] = {}
        self._start = time.monotonic()

    def run(self) -> list[Row]:
        """Run everything. An interrupt ends it, with the results that there are by then."""
        try:
            self._run_all()
        except KeyboardInterrupt:
            say("interrupted")
            self.interrupted = True
        finally:
            self._templates.close()
        return list(self.rows.values())

    def _run_all(self) -> None:
        for name in self.settings.names:
            self._install(name)
        for place, job in enumerate(self.settings.jobs):
            for repeat in range(min(self.settings.repeats, JOBS[job].repeats)):
                if repeat and self._late(place, repeat):
                    say(f"{job}: no further repeats, since the time is short")
                    break
                for name in self._turn(repeat):
                    self._once(name, job)

    def _turn(self, repeat: int) -> Iterator[str]:
        """The peers, each repeat in the other direction, so that a machine that slows down slows all."""
        yield from self.settings.names if repeat % 2 == 0 else reversed(self.settings.names)

    def _late(self, place: int, repeat: int) -> bool:
        share = (place + repeat / self.settings.repeats) / len(self.settings.jobs)
        return time.monotonic() - self._start > self.settings.budget * (share + 0.5 / len(self.settings.jobs))

    def _install(self, name: str) -> None:
        try:
            self._launch[name] = installing.launch(name, self.settings.options.get(name, {}))
        except NotInstalled as reason:
            self._missing[name] = str(reason)

    def _once(self, name: str, job: str) -> None:
        row = self.rows.setdefault((name, job), Row(peer=name, job=job, version=installing.version(PEERS[name])))
        if row.missing or len(row.failures) > 1:
            return
        if missing := self._missing.get(name) or _cannot(PEERS[name], job):
            row.missing = missing
            return
        try:
            sample = self._measured(name, job)
        except PeerUnable as reason:
            row.missing = str(reason)
            return
        except Exception as reason:
            row.failures.append(str(reason).strip() or type(reason).__name__)
            say(f"{job} {name}: FAILED: {error_line(row.failures)}")
            return
        row.samples.append(sample)
        self._rates[name, _pattern(job)] = sample.rate or self._rates.get((name, _pattern(job)), 0.0)
        say(f"{job} {name}: {sample.rate:,.0f}/s {' '.join(sample.notes)}")

    def _measured(self, name: str, job: str) -> Sample:
        if JOBS[job].kind == "drain" and (name, _pattern(job)) not in self._rates:
            for count in PROBES:
                probe = self._run(name, JOBS[_pattern(job)], count)
                self._rates[name, _pattern(job)] = probe.rate
                if probe.rate * SHORT < count:
                    break
        rate = self._rates.get((name, _pattern(job)), 0.0)
        return self._run(name, JOBS[job], int(max(FEWEST, min(MOST, rate * self.settings.seconds))))

    def _run(self, name: str, job: Job, count: int) -> Sample:
        given = self.settings
        effort = Effort(given.seconds, count, given.later, given.later_seconds, given.processes, given.limit)
        return measuring.measure(PEERS[name], job, effort, self._templates, self._launch[name])


def _cannot(peer: Peer, job: str) -> str:
    if peer.flushes_as_variant and job not in FLUSHED:
        return "measured without flushing"
    return peer.cannot.get(job, "")


def _pattern(job: str) -> str:
    """The job whose rate says how large the backlog of another one must be."""
    return "drain" if JOBS[job].kind == "drain" and JOBS[job].mode in ("noop", "hold") else job


def error_line(failures: list[str]) -> str:
    """The line that says what was wrong, of the last failure's traceback."""
    lines = [line.strip(" |+-") for line in failures[-1].splitlines()] if failures else []
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Unable"))]
    return (errors or [line for line in lines if line] or ["unknown"])[-1][:200]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
