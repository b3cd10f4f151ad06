"""`headrace` as a process. Tests wait for its output instead of sleeping."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import headrace

PATIENCE = 60.0
"""Timeout for expected output in seconds."""


class Running:
    """A running command. Its standard output and error are read as one, line by line."""

    def __init__(
        self, arguments: tuple[str, ...], directory: Path, environment: dict[str, str], *,
        module: str | None = "headrace.cli.main",
    ) -> None:  # fmt: skip
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *([module] if module else []), *arguments],
            cwd=directory, env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def line(self, wanted: str | Callable[[str], bool]) -> str:
        """Return the next line that contains the text, or for which the function returns true."""
        is_it = wanted if callable(wanted) else lambda line: wanted in line
        while True:
            try:
                line = self._queue.get(timeout=PATIENCE)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no line {wanted!r} among:\n" + "\n".join(self.lines))
            self.lines.append(line)
            if is_it(line):
                return line

    def each(self, *texts: str) -> list[str]:
        """Return the next lines that contain these texts, which may come in any order."""
        found: dict[str, str] = {}
        while len(found) < len(texts):
            line = self.line(lambda line: any(text in line for text in texts if text not in found))
            found.update({text: line for text in texts if text in line})
        return [found[text] for text in texts]

    def started(self) -> tuple[int, int]:
        """Wait until one of several processes has started. Returns its number and its process id."""
        found = re.search(r"number=(\d+) pid=(\d+)", self.line("process started"))
        assert found is not None
        return int(found[1]), int(found[2])

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the end and return the exit code. All output is in `lines` then."""
        code = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        while not self._queue.empty():
            if (line := self._queue.get()) is not None:
                self.lines.append(line)
        return code

    def ended_with_all(self) -> None:
        """Wait until the process and all its children have closed its standard output."""
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive(), "a child still runs"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Commands:
    """Starts commands in a directory, and ends those that are left."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[Running] = []

    def __call__(self, *arguments: str, directory: Path | None = None, **environment: str) -> Running:
        self._running.append(Running(arguments, directory or self._directory, {**self.environment(), **environment}))
        return self._running[-1]

    def environment(self) -> dict[str, str]:
        """Return an environment in which another process imports the headrace under test, wherever it runs."""
        package = str(Path(headrace.__file__).parents[1])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HEADRACE_LOG_FORMAT": "text"}

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for running in self._running:
            running.close()
