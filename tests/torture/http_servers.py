"""`headrace serve` as a process that tests start, kill and restart. Waits only for the process's own output."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

PATIENCE = 60.0
"""Seconds within which a server must be ready or must have stopped."""

UNAVAILABLE = 69
"""The exit code of a server that can't reach its database when it starts."""


class ServerProcess:
    """A server on one port, which a test may start any number of times.

    Args:
        dsn: Its database.
        log: The file of its log.
        options: Additional options of `headrace serve`.
    """

    def __init__(self, dsn: str, log: Path, *options: str) -> None:
        self._dsn = dsn
        self._log = log
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.lives = 0
        self.package = ROOT / "framework"
        """The directory of the code that the next start runs."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start the process without waiting for it. The port stays that of the first start."""
        self.lives += 1
        self._read = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", "serve", "--host", "127.0.0.1", "--port", str(self.port),
                 "--database", self._dsn, "--log-level", "info", *self._options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._log.parent,
                env={**os.environ, "PYTHONPATH": str(self.package), "HEADRACE_DATA": str(self._log.parent)},
            )  # fmt: skip

    def ready(self) -> bool:
        """Return whether it accepts connections. Raises `AssertionError` if it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.last_words()}")
        return self.accepts()

    def accepts(self) -> bool:
        """Return whether its port accepts connections, once it has reported the port."""
        if not self.port:
            said = re.search(rb"http://127\.0\.0\.1:(\d+)", self._log.read_bytes()[self._read :])
            if said is None:
                return False
            self.port = int(said[1])
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self.begin()
        end = time.monotonic() + PATIENCE
        while not self.ready():
            assert time.monotonic() < end, f"the server is not ready:\n{self.last_words()}"
            time.sleep(0.02)

    def supervise(self) -> None:
        """Restart it if it ended because the database was away when it started. Raises `AssertionError`
        if it ended otherwise.
        """
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            assert code == UNAVAILABLE, f"the server ended with {code}:\n{self.last_words()}"
            self.begin()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> int | None:
        """Interrupt the process as Ctrl-C does. Returns the exit code, or None if it was never started."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(PATIENCE)
                raise AssertionError(f"the server did not stop:\n{self.last_words()}") from None
        return self._process.returncode

    def last_words(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(errors="replace")[-6000:]
