"""The processes of a peer, controlled over their standard input and output."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
GRACE = 10.0
"""Seconds for a process to end by itself before it is killed."""


class PeerFailed(Exception):
    """The peer's process failed, or did not answer in time."""


class NoAnswer(PeerFailed):
    """The peer's process did not answer in time."""


class PeerUnable(Exception):
    """The peer has no such feature."""


class Child:
    """A process that answers commands. `handled` counts the messages that it handled so far."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.handled = 0
        self.died = ""
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._errors: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            text=True,
            errors="replace",
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for read in (self._read_answers, self._read_errors):
            threading.Thread(target=read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, command: str, limit: float, **arguments: Any) -> dict[str, Any]:
        """Send a command, and return its answer.

        Args:
            limit: seconds to wait for it.

        Raises:
            PeerFailed: it failed, or took longer.
            PeerUnable: the peer has no such feature.
        """
        self.send(command, **arguments)
        return self.answer(limit)

    def send(self, command: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode({"do": command, **arguments}).decode() + "\n")
            self.process.stdin.flush()
        except OSError:
            raise PeerFailed(self._last_words()) from None

    def answer(self, limit: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            raise NoAnswer(f"no answer within {limit:.0f} s") from None
        if failed := answer.get("failed"):
            raise PeerFailed(str(failed).strip())
        if unable := answer.get("unable"):
            raise PeerUnable(str(unable))
        return answer

    def close(self) -> None:
        """End the process, or kill it with its own children."""
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()

    def kill(self) -> None:
        """Kill the process as a crash does."""
        os.killpg(self.process.pid, 9)
        self.process.wait()

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                answer = msgspec.json.decode(line)
            except msgspec.DecodeError:  # a library's own output
                self._errors.append(line)
                continue
            if answer.keys() == {"handled"}:
                self.handled = answer["handled"]
            else:
                if failed := answer.get("failed"):
                    self.died = failed
                self._answers.put(answer)
        self.died = self.died or self._last_words()
        self._answers.put({"failed": self.died})

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)
            del self._errors[:-40]

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        return "".join(self._errors[-12:]).strip() or f"the process ended with status {self.process.returncode}"


@contextmanager
def started(launch: Callable[[], Child], limit: float) -> Iterator[Child]:
    """A child whose first answer came, ended afterwards."""
    child = launch()
    try:
        child.answer(limit)
        yield child
    finally:
        child.close()


def wait_for(condition: Callable[[], bool], limit: float, every: float = 0.01) -> bool:
    """Look at a condition until it is true. Returns whether it was within `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True
