"""Measure workloads, and the costs of the calls from which they are predicted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.checks import CheckFailed
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import Keys, batches, bytes_of
from benchmarks.processes import started
from benchmarks.processor_time import Meter, busy, children, postmaster
from benchmarks.scale.client import Done, Job, Times
from benchmarks.scale.model import Call, Costs, Workload
from headrace import store
from headrace.model.specs import ConsumerSpec

BATCH = 100
_FRAME = bytes_of(0)
"""Bytes of a payload without its note."""

_LONGEST_LINE = 1 << 20
_LEAST, _MOST = 4_000, 400_000
"""Messages of a backlog."""

_MOST_BYTES = 400_000_000


class Point(msgspec.Struct, frozen=True):
    """The measurements of a workload.

    Attributes:
        rate: messages per second.
        others: the share of the machine's processors that other programs used meanwhile.
    """

    rate: float
    others: float


async def measured(options: Options, workload: Workload, seconds: float, expected: float) -> Point:
    """Measure a workload.

    Args:
        options: the server.
        workload: what is done.
        seconds: the time of the measurement.
        expected: the rate that is predicted, from which the size of a backlog follows.
    """
    async with bench(options) as place:
        done, others = await _run(place, workload, seconds, expected)
    took = max(one.ended for one in done) - min(one.began for one in done)
    return Point(sum(one.messages for one in done) / took, others)


async def costs_of(options: Options, cores: int, payloads: tuple[int, int], keys: int, seconds: float) -> Costs:
    """Measure each call by one process alone, with two sizes of payloads."""
    calls: dict[str, list[Call]] = {"publish": [], "lease": [], "settle": []}
    for payload in payloads:
        for kind in ("publish", "consume"):
            workload = Workload(kind, cores, 1, int(kind == "consume"), keys, payload)
            async with bench(options) as place:
                (done,), _ = await _run(place, workload, seconds, 100_000_000 / (300 + payload), times=True)
            alone = {name: _call(times) for name, times in done.times.items() if times.calls}
            rate = (await measured(options, workload, seconds, 100_000_000 / (300 + payload))).rate
            for name, call in _waiting(alone, BATCH / rate).items():
                calls[name].append(call)
    return Costs(BATCH, payloads, {name: (small, large) for name, (small, large) in calls.items()})


def _waiting(calls: dict[str, Call], cycle: float) -> dict[str, Call]:
    """Return the calls of a cycle with waits that add up to its duration. Between calls that are measured one by one, a
    process reads its processor time, and the next call finds Postgres asleep.
    """
    worked = sum(call.postgres + call.client for call in calls.values())
    waited = sum(call.wait for call in calls.values())
    part = max(cycle - worked, 0.0) / waited if waited else 0.0
    return {name: msgspec.structs.replace(call, wait=call.wait * part) for name, call in calls.items()}


def _call(times: Times) -> Call:
    each = [part / times.calls for part in (times.postgres, times.client, times.elapsed)]
    return Call(each[0], each[1], max(each[2] - each[0] - each[1], 0.0))


async def _run(
    place: Bench, workload: Workload, seconds: float, expected: float, *, times: bool = False
) -> tuple[list[Done], float]:
    backend = await place.database.fetchval("select pg_backend_pid()")
    cores = sorted(os.sched_getaffinity(0))[: workload.cores]
    note = max(0, workload.payload - _FRAME)
    if workload.kind == "consume":
        backlog = expected / workload.consumers * (seconds + 1) * 1.5
        await _fill(place, workload, min(int(backlog), _MOST, _MOST_BYTES // (workload.payload + 300)))
    consumers = [await _consumer(place, number) for number in range(workload.consumers)]
    await place.without_vacuum()
    with _pinned(backend, cores):
        async with AsyncExitStack() as stack:
            lines = []
            for number in range(workload.processes):
                mine = consumers[number % max(1, len(consumers)) :: workload.processes]
                job = Job(place.dsn, workload.kind, mine, workload.keys, note, BATCH, cores, times)
                process = await stack.enter_async_context(
                    started("benchmarks.scale.client", msgspec.json.encode(job).decode())
                )
                assert process.stdout is not None
                lines.append((process, BufferedByteReceiveStream(process.stdout)))
            with anyio.fail_after(60 + 10 * seconds):
                for _, line in lines:
                    await _line(line)
                others = OtherPrograms(backend)
                for process, _ in lines:
                    assert process.stdin is not None
                    await process.stdin.send(f"{seconds}\n".encode())
                done = [msgspec.json.decode(await _line(line), type=Done) for _, line in lines]
                return done, others.share()


async def _line(lines: BufferedByteReceiveStream) -> bytes:
    try:
        return await lines.receive_until(b"\n", _LONGEST_LINE)
    except (anyio.EndOfStream, anyio.IncompleteRead):
        raise CheckFailed("A process of the workload died.") from None


async def _fill(place: Bench, workload: Workload, count: int) -> None:
    size = 1000 if workload.payload < 5_000 else 100
    for batch in batches(Keys(workload.keys), max(count, _LEAST), size, max(0, workload.payload - _FRAME)):
        await store.publish_many(place.database, STREAM, batch.keys, batch.texts)


async def _consumer(place: Bench, number: int) -> int:
    spec = ConsumerSpec(stream=STREAM, name=f"scale-{number}", max_ack_pending=100_000)
    return (await store.declare_consumer(place.database, spec)).id


@contextmanager
def _pinned(backend: int, cores: Sequence[int]) -> Iterator[None]:
    """Let Postgres run on these processors only. Backends that begin later inherit it."""
    server = postmaster(backend)
    if server is None:
        raise CheckFailed("scale needs a server on this machine, and Linux.")
    before = os.sched_getaffinity(server)
    _pin(server, set(cores))
    try:
        yield
    finally:
        _pin(server, before)


def _pin(server: int, cores: set[int]) -> None:
    for process in (server, *children(server)):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process, cores)


class OtherPrograms:
    """The processor time that programs beside the benchmark use, or the machine's host takes away, from now on."""

    def __init__(self, backend: int) -> None:
        self._meter = Meter(postgres=postmaster(backend), processes=os.getpid())
        self._busy = busy()

    def share(self) -> float:
        """Return their share of all processors of the machine."""
        worked, used = busy() - self._busy, self._meter.read()
        others = worked - used.get("postgres", 0.0) - used["processes"]
        return max(0.0, others / used["wall"] / (os.cpu_count() or 1))
