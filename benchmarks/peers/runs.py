"""A run: its servers, its processes, and what is read of them."""

from __future__ import annotations

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
from benchmarks.peers.children import Child, NoAnswer, PeerFailed, started
from benchmarks.peers.jobs import Job
from benchmarks.peers.judging import Entry
from benchmarks.peers.readings import Reading
from benchmarks.peers.servers import Templates

SILENCE = 15.0
"""Seconds without a message after which a run has failed."""
SETUP = 60.0
"""Seconds to set a peer up."""


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


class Run:
    """A run: its servers, its processes, and what is read at the beginning and the end of the measured part."""

    def __init__(
        self, place: servers.Place, effort: Effort, job: Job, launch: Callable[[], Child], files: Path
    ) -> None:
        self.place = place
        self.effort = effort
        self.job = job
        self.notes: list[str] = []
        self.settings: dict[str, Any] = {}
        self._launch = launch
        self._files = files
        self._deadline = time.monotonic() + effort.limit
        self._stack = ExitStack()
        self._traces: dict[int, list[Path]] = {}
        self.publisher = self.start()
        self.consumers: list[Child] = []

    def start(self) -> Child:
        """Start a process of the peer, and wait until it is ready for commands."""
        child = self._launched()
        self.settings = child.answer(self.left)["settings"]
        return child

    def _launched(self) -> Child:
        child = self._launch()
        self._stack.callback(child.close)
        return child

    def close(self) -> None:
        self._stack.close()

    @property
    def left(self) -> float:
        """Seconds until the run is given up."""
        if (left := self._deadline - time.monotonic()) <= 0:
            raise PeerFailed(f"not done within {self.effort.limit:.0f} s")
        return left

    def ask(self, child: Child, command: str, **arguments: Any) -> dict[str, Any]:
        child.send(command, **arguments)
        try:
            return child.answer(self.left)
        except NoAnswer:
            raise PeerFailed(f"not done within {self.effort.limit:.0f} s: no answer to `{command}`") from None

    def publish(self, first: int, most: int, seconds: float, batch: int, **options: Any) -> dict[str, Any]:
        return self.ask(
            self.publisher,
            "publish",
            first=first,
            most=most,
            seconds=seconds,
            batch=batch,
            keys=self.job.keys,
            note=self.job.note,
            **options,
        )

    def launch(self, processes: int) -> None:
        """Launch worker processes, which get ready while something else is done. They take the place of earlier ones."""
        self.consumers = [self._launched() for _ in range(processes)]
        self._traces = {}

    def ready(self) -> None:
        """Wait until the worker processes are ready for commands."""
        for child in self.consumers:
            child.answer(self.left)

    def consume(self, **options: Any) -> None:
        """Start to consume in each worker process.

        Args:
            options: of the handler, other than the job's, see `process/recorder.py`.
        """
        mode = options.pop("mode", self.job.mode)
        for child in self.consumers:
            reader = self.consumers.index(child) % self.job.readers
            trace = self._files / f"trace-{child.pid}"
            self._traces.setdefault(reader, []).append(trace)
            effects = self.place.dsn if mode == "effect" else None
            self.ask(child, "consume", reader=reader, mode=mode, trace=str(trace), effects=effects, **options)

    @property
    def handled(self) -> int:
        return sum(child.handled for child in self.consumers)

    def wait(self, expected: int, silence: float = SILENCE) -> bool:
        """Wait until so many messages were handled, over all readers.

        Returns:
            False after `silence` seconds without any, once there was one.
        """
        seen, since = -1, time.monotonic()
        while (handled := self.handled) < expected:
            for child in self.consumers:
                if child.died:
                    raise PeerFailed(child.died)
            if handled != seen:
                seen, since = handled, time.monotonic()
            elif time.monotonic() - since > (silence if handled else SILENCE):
                return False
            time.sleep(min(0.005, self.left))
        return True

    def after_start(self, warm: int) -> tuple[Reading, int]:
        """Read the counters once so many messages were handled, and return how many were by then. What workers do once,
        such as to connect, is over, and so are their first calls, which the server plans."""
        self.wait(warm)
        handled = sum(self.ask(child, "count")["handled"] for child in self.consumers)
        return self.read(*self.consumers), handled

    def settle(self) -> None:
        """Wait until nothing is left in the database."""
        end = time.monotonic() + SILENCE
        while remaining := self.ask(self.publisher, "remaining")["remaining"]:
            if time.monotonic() > end:
                self.notes.append(f"{remaining:,} are not acked {SILENCE:.0f} s after the last handler")
                return
            time.sleep(0.01)

    def read(self, *children: Child) -> Reading:
        """Read the counters, with these processes as the clients."""
        others = [child.pid for child in (self.publisher, *self.consumers) if child not in children]
        return readings.read([child.pid for child in children], self.place.processes, others)

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
        "settings": launch["settings"],
        "readers": job.readers,
        "ordered": job.ordered,
        "paced": job.kind == "pace",
        "transaction": job.transaction,
    }

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
