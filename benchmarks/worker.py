"""The worker process: `python -m benchmarks.worker` reads a job, runs it in a real App, and reports. See `wire`."""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from benchmarks import checks
from benchmarks.checks import CheckFailed
from benchmarks.payloads import Order
from benchmarks.timing import PhaseSummary, summarise
from benchmarks.wire import (
    ConsumerJob,
    Failed,
    Finish,
    HandlerName,
    Job,
    Message,
    Progress,
    Ready,
    Report,
    TelemetryMode,
)
from headrace import App, Telemetry, Transaction
from headrace.cli.processes.garbage import spare_what_exists

PROGRESS_EVERY = 0.02
TIMEOUT = 60.0
"""Seconds without any progress after which the benchmark fails."""
POLL = 0.005
WORK = 0.001
"""Seconds that the handler of `work` awaits."""

Handler = Callable[..., Awaitable[None]]


class Numbered(msgspec.Struct, gc=False):
    """A captured row: its latest number, and CLOCK_MONOTONIC at the start of that write."""

    number: int
    at: int


class Change(msgspec.Struct, gc=False):
    """The parts of a change of such a row that the handler reads."""

    record: Numbered


class Record:
    """The observations of a consumer's handlers. Handlers only append to it, and it is checked after the clock stops.

    `trace` has the number of each message that began. For handlers that await, it also has the
    complement when they ended.
    """

    def __init__(self, job: ConsumerJob) -> None:
        self.job = job
        self.first = 0
        self.trace = array("q")
        self.times = array("q")
        self.latencies = array("q")
        self.release = anyio.Event()

    @property
    def awaits(self) -> bool:
        return self.job.handler in ("work", "hold")

    @property
    def begun(self) -> int:
        """How many messages began. For handlers that await, only correct as long as none has ended."""
        return len(self.trace)

    def check(self, expected: int) -> list[str]:
        name = self.job.name
        proven = [checks.exactly_once(checks.starts(self.trace), expected, name)]
        if self.job.keys is not None:
            proven.append(checks.in_order(self.trace, self.job.keys, name, awaits=self.awaits))
        return proven


def noop(record: Record) -> Handler:
    begin = record.trace.append

    async def handle(order: Order) -> None:
        if not record.first:
            record.first = time.monotonic_ns()
        begin(order.number)

    return handle


def work(record: Record) -> Handler:
    note = record.trace.append

    async def handle(order: Order) -> None:
        if not record.first:
            record.first = time.monotonic_ns()
        note(order.number)
        await anyio.sleep(WORK)
        note(~order.number)

    return handle


def timed(record: Record) -> Handler:
    begin, at, took = record.trace.append, record.times.append, record.latencies.append

    async def handle(order: Order) -> None:
        now = time.monotonic_ns()
        if not record.first:
            record.first = now
        begin(order.number)
        at(now)
        took(now - order.at)

    return handle


def hold(record: Record) -> Handler:
    note = record.trace.append

    async def handle(order: Order) -> None:
        if not record.first:
            record.first = time.monotonic_ns()
        note(order.number)
        await record.release.wait()
        note(~order.number)

    return handle


def effect(record: Record) -> Handler:
    note = record.trace.append

    async def handle(order: Order, tx: Transaction) -> None:
        if not record.first:
            record.first = time.monotonic_ns()
        note(order.number)
        await tx.execute("insert into effects (number) values ($1)", order.number)

    return handle


def effects(record: Record) -> Handler:
    note = record.trace.extend

    async def handle(orders: list[Order], tx: Transaction) -> None:
        if not record.first:
            record.first = time.monotonic_ns()
        numbers = [order.number for order in orders]
        note(numbers)
        await tx.execute("insert into effects (number) select * from unnest($1::bigint[])", numbers)

    return handle


def changed(record: Record) -> Handler:
    begin, at, took = record.trace.append, record.times.append, record.latencies.append

    async def handle(change: Change) -> None:
        now = time.monotonic_ns()
        if not record.first:
            record.first = now
        begin(change.record.number)
        at(now)
        took(now - change.record.at)

    return handle


HANDLERS: dict[HandlerName, Callable[[Record], Handler]] = {
    "noop": noop,
    "work": work,
    "timed": timed,
    "hold": hold,
    "effect": effect,
    "effects": effects,
    "changed": changed,
}


class Worker:
    """Runs a job until its `Finish`, and reports."""

    def __init__(self, job: Job) -> None:
        self._app = App(job.dsn, telemetry=_telemetry(job.telemetry_mode))
        self._stream = job.stream
        self._records = [Record(consumer) for consumer in job.consumers]
        for record in self._records:
            handler = HANDLERS[record.job.handler](record)
            self._app.consumer(job.stream, name=record.job.name, **record.job.settings)(handler)
        for capture in job.captures:
            self._app.capture(*capture.tables, into=job.stream, **capture.settings)

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(self._app.run, on_running=spare_what_exists))  # as `headrace run` does
            while not self._app.statistics():  # noqa: ASYNC110 - the app has no event for it
                await anyio.sleep(0.001)
            self._cpu = time.process_time()
            send(Ready())
            async with anyio.create_task_group() as telemetry_mode:
                telemetry_mode.start_soon(self._send)
                finish = await receive(Finish)
                for record in self._records:
                    record.release.set()
                await self._all_begun(finish.expected)
                telemetry_mode.cancel_scope.cancel()
            await self._all_settled()
            report = self._report(finish, settled=time.monotonic_ns())
            for record in self._records:
                report.checks.append(await checks.settled(self._app.database, self._stream, record.job.name))
            send(report)
            self._app.stop()

    async def _send(self) -> None:
        while True:
            send(Progress(min((record.begun for record in self._records), default=0)))
            await anyio.sleep(PROGRESS_EVERY)

    async def _all_begun(self, expected: int) -> None:
        """Wait until all began. It polls, so that the handlers needn't count."""
        seen, since = -1, time.monotonic()
        while any(len(record.trace) < (2 if record.awaits else 1) * expected for record in self._records):
            total = sum(len(record.trace) for record in self._records)
            if total != seen:
                seen, since = total, time.monotonic()
            elif time.monotonic() - since > TIMEOUT:
                counts = {record.job.name: len(list(checks.starts(record.trace))) for record in self._records}
                raise CheckFailed(
                    f"nothing came for {TIMEOUT:.0f} s; of {expected} messages each, there came {counts}."
                )
            await anyio.sleep(POLL)

    async def _all_settled(self) -> None:
        with anyio.move_on_after(TIMEOUT):  # after that, the check reports what is left
            for record in self._records:
                while not await checks.is_settled(  # noqa: ASYNC110 - the database is asked
                    self._app.database, self._stream, record.job.name
                ):
                    await anyio.sleep(0.002)

    def _report(self, finish: Finish, settled: int) -> Report:
        first = min((record.first for record in self._records), default=settled)
        # Before the checks below, which use CPU time, too.
        cpu = time.process_time()
        busy = cpu / ((settled - _STARTED) / 1e9)
        phases: dict[str, dict[str, PhaseSummary]] = {
            record.job.name: {phase.name: summarise(phase, record.times, record.latencies) for phase in finish.phases}
            for record in self._records
        }
        proven = [text for record in self._records for text in record.check(finish.expected)]
        return Report(first, settled, busy, cpu - self._cpu, proven, phases)


def _telemetry(telemetry_mode: TelemetryMode) -> Telemetry | bool:
    if telemetry_mode == "off":
        return False
    from benchmarks.null_telemetry import telemetry  # a worker without telemetry doesn't need OpenTelemetry

    return telemetry(telemetry_mode)


_STARTED = time.monotonic_ns()


def send(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def receive(kind: type[Finish]) -> Finish:
    line = await anyio.to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True)
    return msgspec.json.decode(line, type=kind)


def main() -> int:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    try:
        with checks.plain():
            anyio.run(Worker(job).run, backend_options={"use_uvloop": True})
    except CheckFailed as wrong:
        send(Failed(str(wrong)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
