"""Says what a run of tests was doing when it is terminated, such as by the time limit of a CI machine.

Without it, all that is known of a run that hangs is how many tests had ended.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Generator
from typing import NoReturn

import psutil
import pytest

ENDING = 5.0
"""Seconds that the processes of pytest-xdist have to write their stacks."""


class Stacks:
    """A plugin of a process of pytest-xdist. At SIGTERM it writes the stacks of its threads, and ends."""

    def __init__(self) -> None:
        self._output = os.dup(2)  # pytest captures the other one

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Listen to the signal. A test that handles it leaves it with the default."""
        faulthandler.register(signal.SIGTERM, self._output, chain=True)
        try:
            return (yield)
        finally:
            faulthandler.unregister(signal.SIGTERM)


class Termination:
    """A plugin of the process that leads a run. At SIGTERM it writes its stacks, too, names the tests that have failed
    and those that are running, passes the signal on to the processes of pytest-xdist, and lets pytest end as after
    Ctrl-C.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._output = os.dup(2)
        self._began: dict[str, float] = {}
        self._failed: list[str] = []

    def pytest_sessionstart(self) -> None:
        """Listen to the signal from now on."""
        signal.signal(signal.SIGTERM, self._terminate)
        faulthandler.register(signal.SIGTERM, self._output, chain=True)  # it works even if Python is stuck

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins, in any process of the run."""
        self._began[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has failed."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note a test that has ended."""
        self._began.pop(nodeid, None)

    def _terminate(self, number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        out, now = self._config.get_terminal_writer(), time.monotonic()
        out.line()
        for test in self._failed:
            out.line(f"failed before: {test}")
        for test, began in self._began.items():
            out.line(f"running for {now - began:.0f} s: {test}")
        out.flush()
        if self._config.pluginmanager.hasplugin("dsession"):  # then this process has no other children
            processes = psutil.Process().children()
            for one in processes:
                one.terminate()
            psutil.wait_procs(processes, ENDING)
        raise KeyboardInterrupt
