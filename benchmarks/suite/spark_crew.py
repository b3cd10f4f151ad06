"""The process with the warm Spark session, controlled by the benchmark that started it.

The two exchange JSON, one message per line. The classes here are these messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.checks import CheckFailed
from benchmarks.processes import start

_LONGEST_LINE = 1 << 20
_TIMEOUT = 900.0
"""Seconds after which a job has failed."""


class Work(msgspec.Struct, frozen=True):
    """A job: the name of one of `spark_jobs.JOBS`, the database, the number of messages, and further arguments."""

    job: str
    dsn: str
    count: int
    given: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The session has started.

    `java` is the id of its process, `seconds` the duration of its start, `versions` are Spark's and
    Java's.
    """

    java: int
    seconds: float
    versions: dict[str, str]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The job has ended. `seconds` is its duration, and `found` its other results."""

    seconds: float
    found: dict[str, Any] = {}


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A check failed. Contains the reason."""

    reason: str


_decoder: msgspec.json.Decoder[Ready | Done | Failed] = msgspec.json.Decoder(Ready | Done | Failed)


class SparkCrew:
    """A process that keeps a session warm and runs one job after the other.

    Attributes:
        pid: of the Python process.
        ready: its message when it had its session.
    """

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.ready = Ready(0, 0.0, {})
        self._to = process.stdin
        self._from = BufferedByteReceiveStream(process.stdout)

    async def begin(self) -> None:
        """Wait for the session. Raises `CheckFailed` if it can't start."""
        answer = await self._receive()
        assert isinstance(answer, Ready)
        self.ready = answer

    async def do(self, job: str, dsn: str, count: int, **given: Any) -> Done:
        """Run a job. Raises `CheckFailed` if it fails, or its result is wrong."""
        await self._to.send(msgspec.json.encode(Work(job, dsn, count, given)) + b"\n")
        answer = await self._receive()
        assert isinstance(answer, Done)
        return answer

    async def _receive(self) -> Ready | Done:
        try:
            with anyio.fail_after(_TIMEOUT):
                answer = _decoder.decode(await self._from.receive_until(b"\n", _LONGEST_LINE))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            raise CheckFailed("the process with the Spark session died") from None
        except TimeoutError:
            raise CheckFailed(f"the process with the Spark session said nothing for {_TIMEOUT:.0f} s") from None
        if isinstance(answer, Failed):
            raise CheckFailed(answer.reason)
        return answer


@asynccontextmanager
async def spark_crew(conf: dict[str, str], master: str = "local[2]") -> AsyncIterator[SparkCrew]:
    """Start a process with a session of this configuration. Both are stopped at the end."""
    process = await start("benchmarks.suite.spark_worker", msgspec.json.encode(conf).decode(), master)
    try:
        crew = SparkCrew(process)
        await crew.begin()
        yield crew
    finally:
        with anyio.CancelScope(shield=True):
            assert process.stdin is not None
            await process.stdin.aclose()  # then it stops its session, and ends
            with anyio.move_on_after(30):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()
