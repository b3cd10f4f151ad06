"""http: publish and receive over HTTP, with three consumers that each receive everything, 50 receivers in all."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import anyio

from benchmarks import checks
from benchmarks.checks import CheckFailed
from benchmarks.harness import MESSAGES, PLAIN, STREAM, Bench, Options, bench
from benchmarks.http_client import Board, Connection, Messages, Publisher, Receiver, deal_batches
from benchmarks.http_server import BARE, HEADRACE, Server, serving
from benchmarks.payloads import LARGE_NOTE, SMALL_NOTE, Keys, bytes_of
from benchmarks.processor_time import Meter, postmaster
from benchmarks.report import Result, figures
from benchmarks.suite.http_idle import idle
from benchmarks.suite.http_wake import wake
from benchmarks.timing import Measured
from headrace import store
from headrace.model.specs import ConsumerSpec

KEYS = Keys(100_000)
RECEIVERS = {"billing": 17, "shipping": 17, "audit": 16}
PUBLISHERS = 8
BATCH = 10
LEAD = 5000
MAX_ACK_PENDING = 10_000
MAX_WAITING = 20
WAIT_FOR = "60s"
STALLED = 30.0
"""Seconds without an answer after which the benchmark fails."""


async def http(options: Options) -> Result:
    """Publish and receive over HTTP in batches of 10: 3 consumers, 50 receivers in all, 10 kB and small payloads."""
    measured, costs, proven = await _sizes(options, options.count(50_000, 2000), LARGE_NOTE)
    small, small_costs, small_proven = await _sizes(options, options.count(150_000, 5000), SMALL_NOTE)
    return Result(
        benchmark="http",
        about="messages published over HTTP and received by each of three consumers, 10 kB payloads",
        measured=measured,
        limit_is="the same calls, to a bare uvicorn that answers each with the same bytes, without a database",
        variants={
            "small": {**figures(small), "payload_bytes": bytes_of(SMALL_NOTE), **small_costs, "checks": small_proven},
            "idle": await idle(options),
            "wake": await wake(options),
        },
        details=costs,
        settings={
            "messages": options.count(50_000, 2000),
            "messages_of_small": options.count(150_000, 5000),
            "batch": BATCH,
            "consumers": len(RECEIVERS),
            "receivers": sum(RECEIVERS.values()),
            "wait_for": WAIT_FOR,
            "publishers": PUBLISHERS,
            "publishers_at_most_ahead": LEAD,
            "payload_bytes": bytes_of(LARGE_NOTE),
            "payload": "random letters and digits, which do not compress",
            "keys": KEYS.count,
            "max_ack_pending": MAX_ACK_PENDING,
            "server_processes": 1,
            "client_processes": 1,
            "repeats": options.times(3, 1),
        },
        checks=proven,
    )


async def _sizes(options: Options, count: int, note: int) -> tuple[Measured, dict[str, Any], list[str]]:
    """The rates with messages of one size, their CPU cost and the rate of a server that only stores them, and what was proven
    of them."""
    measured, stored, costs, proven = Measured(), list[float](), dict[str, Any](), list[str]()
    storing: dict[str, Any] = {}
    for _ in range(options.times(3, 1)):
        rate, costs, proven = await _ours(options, count, note, RECEIVERS)
        measured.samples.append(rate)
        measured.limit_samples.append((await _bare(count, note))[0])
        rate, storing = await _storing(options, count, note)
        stored.append(rate)
    only_stores = Measured(measured.samples, stored)
    storing = {"cpu_us_per_message": storing["cpu_us_per_message"]}
    return (
        measured,
        {**costs, "only_stores": {"limit": only_stores.limit, "ratio": only_stores.ratio, **storing}},
        proven,
    )


async def _bare(count: int, note: int, *arguments: str, postgres: int | None = None) -> tuple[float, dict[str, Any]]:
    """The rate and the CPU cost of the bare web server."""
    async with serving(BARE, "--batch", str(BATCH), "--note", str(note), *arguments) as server:
        rate, costs, _ = await _run(server, count, note, postgres, RECEIVERS)
        return rate, costs


async def _storing(options: Options, count: int, note: int) -> tuple[float, dict[str, Any]]:
    """The rate and the CPU cost of the bare web server that stores what is published."""
    async with bench(options) as place:
        await place.rest(PLAIN)
        rate = await _bare(count, note, "--database", place.dsn, postgres=await _postgres(place))
        if (rows := await place.database.fetchval(f"select count(*) from {PLAIN}")) != count:
            raise CheckFailed(f"Of {count:,} messages {rows:,} were stored.")
        return rate


async def receiving_rate(options: Options, count: int, receivers: int) -> float:
    """The messages per second with so many receivers, shared by three consumers, and small payloads."""
    third = dict.fromkeys(RECEIVERS, receivers // len(RECEIVERS))
    return (await _ours(options, count, SMALL_NOTE, third))[0]


async def _ours(
    options: Options, count: int, note: int, receivers: dict[str, int]
) -> tuple[float, dict[str, Any], list[str]]:
    """The rate, the CPU cost and what was proven, of a server of ours. `receivers`: how many each consumer has."""
    async with bench(options) as place:
        for name, size in receivers.items():
            spec = ConsumerSpec(
                stream=STREAM, name=name, max_ack_pending=MAX_ACK_PENDING, max_waiting=max(size, MAX_WAITING)
            )
            await store.declare_consumer(place.database, spec)
        await place.rest(MESSAGES)
        async with serving(HEADRACE, "--database", place.dsn) as server:
            rate, costs, board = await _run(server, count, note, await _postgres(place), receivers)
        return rate, costs, await _proven(place, board)


async def _run(
    server: Server, count: int, note: int, postgres: int | None, receivers: dict[str, int]
) -> tuple[float, dict[str, Any], Board]:
    """Publish and receive `count` messages. Returns messages per second, and the CPU time by process."""
    loop = asyncio.get_running_loop()
    board = Board(count, list(receivers), LEAD)
    messages = Messages(KEYS, note)
    clients: list[Connection] = [
        Receiver(board, STREAM, name, BATCH, WAIT_FOR, note) for name, size in receivers.items() for _ in range(size)
    ]
    clients += [Publisher(board, STREAM, messages, iter(mine)) for mine in deal_batches(KEYS, count, PUBLISHERS, BATCH)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", server.port)  # type: ignore[misc]
    meter = Meter(server=server.pid, postgres=postgres)
    start = time.perf_counter()
    for client in clients:
        client.go_on()
    await _until_done(board)
    seconds = time.perf_counter() - start
    used = meter.read()
    for client in clients:
        client.close()
    return count / seconds, _costs(used, board), board


async def _until_done(board: Board) -> None:
    answers = -1
    while not board.done.done():
        if answers == (answers := sum(board.answers.values())):
            raise CheckFailed(
                f"No answer for {STALLED:g} s: published {board.published}, received {board.got}, {board.acking} acks open."
            )
        await asyncio.wait([board.done], timeout=STALLED)
    await board.done


def _costs(used: dict[str, float], board: Board) -> dict[str, Any]:
    """The CPU time by process, per message that was published and received three times."""
    names = [name for name in ("server", "postgres", "client") if name in used]
    return {
        "cpu_us_per_message": {name: used[name] / board.count * 1e6 for name in names},
        "cores_busy": {name: used[name] / used["wall"] for name in names},
        "messages_per_receive": sum(board.got.values()) / max(1, board.answers["receive"]),
        "requests": dict(board.answers),
    }


async def _postgres(place: Bench) -> int | None:
    return postmaster(await place.database.fetchval("select pg_backend_pid()"))


async def _proven(place: Bench, board: Board) -> list[str]:
    proven = [await checks.stored(place.database, STREAM, board.count)]
    for name, trace in board.traces.items():
        proven.append(checks.exactly_once(trace, board.count, name))
        proven.append(checks.in_order(trace, KEYS, name, awaits=False))
        with anyio.fail_after(10):
            proven.append(await checks.settled(place.database, STREAM, name))
    return proven
