"""The Java process of a session on a master: starts it, reads its standard error, and ends it.

PySpark starts it as a child that ignores Ctrl-C. It ends when its standard input ends, so also when
this process is killed. This module reads its standard error. The output during the start becomes
the error message if the start fails, and is dropped otherwise. Later output is passed on.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace_spark.session.configuration import SECRET
from headrace_spark.session.errors import SparkUnavailable

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]

_MAX_LINES = 200  # lines
_MAX_LINE_BYTES = 64 * 1024  # bytes. A longer line is passed on in pieces
_END_TIMEOUT = 20.0  # seconds that a Java process has to end on its own
_JAVA_EXCEPTION = re.compile(
    r'(?:Exception in thread "[^"]*" |Caused by: )?(?:[\w$]+\.)+[\w$]*(?:Exception|Error)\b:?\s*(.*)'
)
_NOISE = re.compile(
    r"\s+at |\s+\.\.\. |WARNING: |\S+ \S+ (WARN|INFO) |Error: (Could not create|A fatal exception)|Using Spark's|Setting default log level"
    r"|To adjust logging"
)


class Listener(threading.Thread):
    """A thread that reads a Java process's standard error."""

    def __init__(self, source: int) -> None:
        super().__init__(name="headrace-spark-stderr", daemon=True)
        self._source = source
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._passing_on = threading.Event()

    def run(self) -> None:
        with open(self._source, "rb") as source:
            while line := source.readline(_MAX_LINE_BYTES):
                if self._passing_on.is_set():
                    # Not through sys.stderr, since a thread must not hold its lock when the
                    # interpreter ends.
                    with contextlib.suppress(OSError):
                        os.write(2, line)
                else:
                    self._lines.append(line.decode(errors="replace").rstrip())

    def pass_on(self) -> None:
        """Pass on all further output. It is called once the process has started."""
        self._passing_on.set()
        self._lines.clear()

    def error_text(self) -> str:
        """The reason why the process died, from its own output."""
        lines = [line for line in self._lines if line.strip() and not _NOISE.match(line)]
        raised = [found[1] for line in lines if (found := _JAVA_EXCEPTION.match(line)) and found[1]]
        return " ".join((raised or lines or ["no reason is given"])[-1].split()).rstrip(".")


_running: list[Gateway] = []


def kill_all() -> None:
    """Kill the Java processes of all sessions immediately. A signal handler may call it."""
    for gateway in _running:
        gateway.kill()


class Gateway:
    """The Java process of a session."""

    def __init__(self, java: JavaGateway, listener: Listener) -> None:
        self._java = java
        self._process: subprocess.Popen[bytes] = java.proc
        self.listener = listener
        _running.append(self)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    @contextlib.contextmanager
    def kill_after(self, seconds: float) -> Iterator[threading.Event]:
        """Kill the process if the block takes longer than this. That also ends the wait for its answer. Yields an event that
        is set when the time is over."""
        over = threading.Event()

        def kill() -> None:
            over.set()
            self.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            yield over
        finally:
            timer.cancel()

    def end(self) -> None:
        """End the process, and reset PySpark's globals, so that PySpark can start another one."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        # The process may be gone already. Py4J waits without a limit if a thread still reads from a callback connection
        # that Java has not closed, and then the end of the process is what closes it.
        with self.kill_after(_END_TIMEOUT), contextlib.suppress(Exception):
            self._java.shutdown()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.listener.join(_END_TIMEOUT)
        _running.remove(self)
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def launch(conf: Mapping[str, str]) -> Gateway:
    """Start a Java process with this configuration. Raises `SparkUnavailable`."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    # Every user of the machine can read a command line, so secrets are left out. The session gets
    # them later.
    shown = SparkConf(loadDefaults=False).setAll([pair for pair in conf.items() if not SECRET.search(pair[0])])
    source, sink = os.pipe()
    listener = Listener(source)
    listener.start()
    failure: Exception | None = None
    try:
        java = launch_gateway(shown, popen_kwargs={"stderr": sink})  # type: ignore[no-untyped-call]
    except (PySparkException, OSError) as error:
        failure = error
    finally:
        os.close(sink)
    if failure is not None:
        listener.join(_END_TIMEOUT)
        reason = str(failure) if isinstance(failure, OSError) else listener.error_text()  # it may not have started
        raise SparkUnavailable(f"Spark can't start: {reason}.") from failure
    SparkContext._ensure_initialized(gateway=java)
    return Gateway(java, listener)


@contextlib.contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables while Spark is started, since PySpark reads them only from there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def stop_session(spark: Any) -> None:
    """Stop a session, even if its process is gone."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        spark.stop()
