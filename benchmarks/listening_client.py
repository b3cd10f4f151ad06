"""A consumer without a framework, which `latency` compares a worker with.

`python -m benchmarks.listening_client --dsn URL --channel NAME --consumer ID`

It listens with the driver, leases once for a notification, decodes, and settles six leases in a call, as many as a worker
gathers at that pace. It has neither order per key, retries, time limits, heartbeats nor extended leases. Its processor
time is what the driver and the calls themselves take. It measures from a line on its standard input to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import uvloop

from benchmarks.payloads import Order
from benchmarks.timing import percentile

LEASE = """select (b).lease_id, (b).data, (b).more
           from (select headrace_internal.lease($1, $2, row(32, 2000, 16000000, false)) as b) as called"""
SETTLE = "select * from headrace_internal.settle_outcomes($1, $2, '{}', '{}', '{}')"
GATHERED = 6


class Used(msgspec.Struct, frozen=True):
    """The costs of a client: its CPU time per message, and the time from publish to handler."""

    cpu_us: float
    p50_ms: float
    p99_ms: float


async def consume(dsn: str, channel: str, consumer: int) -> Used:
    """Consume until the second line comes. Leases that are gathered then are left."""
    news, lines = asyncio.Event(), 0
    began = 0.0
    took: list[int] = []

    def line() -> None:
        nonlocal lines, began
        lines += len(sys.stdin.readline()) > 0
        if lines == 1:
            began = time.process_time()
            took.clear()
        news.set()

    decode, owner = msgspec.json.Decoder(Order).decode, uuid4()
    connection, listener = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await listener.add_listener(channel, lambda *_: news.set())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), line)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    leases: list[int] = []
    while lines < 2:
        await news.wait()
        news.clear()
        more = True
        while more:
            batch: Any = await connection.fetchrow(LEASE, consumer, owner)
            if batch[0] is None:
                break
            took.extend(time.monotonic_ns() - decode(data).at for data in batch[1])
            leases.append(batch[0])
            more = batch[2]
        if len(leases) >= GATHERED:
            await connection.fetch(SETTLE, consumer, leases)
            leases.clear()
    cpu = time.process_time() - began
    took.sort()
    return Used(cpu / len(took) * 1e6, percentile(took, 0.5) / 1e6, percentile(took, 0.99) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--channel", required=True)
    parser.add_argument("--consumer", type=int, required=True)
    asked = parser.parse_args()
    print(msgspec.json.encode(uvloop.run(consume(asked.dsn, asked.channel, asked.consumer))).decode())


if __name__ == "__main__":
    main()
