"""One of several processes that publish, or lease and ack, in batches: `python -m benchmarks.scale.client JOB`.

It prints a line when it is ready. It begins at the line of its input that has the seconds to work for, prints what it
did, and ends when its input ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Literal
from uuid import uuid4

import anyio
import anyio.to_thread
import msgspec

from benchmarks.harness import STREAM, opened
from benchmarks.payloads import Keys, batches
from benchmarks.processor_time import used
from headrace import store
from headrace.model.outcomes import Settlement
from headrace.store import Database

_WARMING = 20
_EMPTY = 3
"""Lease calls of each consumer that find nothing, after which a process ends."""

_DISTINCT = 200
"""Different batches that a publisher makes beforehand."""

_MOST_DISTINCT_BYTES = 100_000_000


class Job(msgspec.Struct, frozen=True):
    """The work of a process.

    Attributes:
        kind: whether it publishes, or leases and acks.
        consumers: the ids of the consumers for which it leases in turn.
        keys: the number of keys of the messages that it publishes.
        note: the bytes of their notes.
        cores: the processors on which it may run.
        times: whether it measures each call.
    """

    dsn: str
    kind: Literal["publish", "consume"]
    consumers: list[int]
    keys: int
    note: int
    batch: int
    cores: list[int]
    times: bool = False


class Times(msgspec.Struct):
    """The times of all calls of a kind, in seconds: processor time in Postgres and in the client, and from call to answer."""

    calls: int = 0
    postgres: float = 0.0
    client: float = 0.0
    elapsed: float = 0.0


class Done(msgspec.Struct, frozen=True):
    """The messages that a process handled, and when it began and ended, in seconds of the monotonic clock."""

    messages: int
    began: float
    ended: float
    times: dict[str, Times]


class _Client:
    def __init__(self, job: Job, database: Database, server: int) -> None:
        self._job, self._database = job, database
        self._server = server
        self._owner = uuid4()
        self.idle = 0  # lease calls in a row that found that there was nothing
        self._consumers = cycle(list(job.consumers))
        distinct = max(2, min(_DISTINCT, _MOST_DISTINCT_BYTES // (job.batch * (job.note + 200))))
        made = list(batches(Keys(job.keys), job.batch * distinct, job.batch, job.note)) if job.kind == "publish" else []
        self._batches = cycle(made)
        self.times: dict[str, Times] = {"publish": Times(), "lease": Times(), "settle": Times()}

    async def act(self) -> int:
        """Publish a batch, or lease and ack one. Returns the number of messages."""
        return await (self._publish() if self._job.kind == "publish" else self._consume())

    async def _publish(self) -> int:
        batch = next(self._batches)
        with self._timed("publish"):
            return await store.publish_many(self._database, STREAM, batch.keys, batch.texts)

    async def _consume(self) -> int:
        consumer = next(self._consumers)
        with self._timed("lease"):
            leased = await store.lease(self._database, consumer, self._owner, self._job.batch)
        if leased.lease_id is None:
            if leased.busy:  # enough others wait for the consumer's lock
                await anyio.sleep(leased.due_in or 0.01)
            else:
                self.idle += 1
            return 0
        self.idle = 0
        with self._timed("settle"):
            lost = await store.settle(self._database, consumer, Settlement(whole=[leased.lease_id]))
        if lost:
            raise RuntimeError("A lease was lost.")
        return len(leased.seqs)

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        if not self._job.times:
            yield
            return
        times, server = self.times[kind], used(self._server)
        began, own = time.perf_counter(), time.process_time()
        yield
        times.elapsed += time.perf_counter() - began
        times.client += time.process_time() - own
        times.postgres += used(self._server) - server
        times.calls += 1


async def _work(client: _Client, consumers: int) -> Done:
    for _ in range(_WARMING):
        await client.act()
    client.times = {kind: Times() for kind in client.times}
    print("ready", flush=True)
    seconds = float(await anyio.to_thread.run_sync(sys.stdin.readline))
    began = now = time.monotonic()
    messages = 0
    while now - began < seconds and client.idle < _EMPTY * max(1, consumers):
        messages += await client.act()
        now = time.monotonic()
    return Done(messages, began, now, client.times)


async def main(job: Job) -> None:
    os.sched_setaffinity(0, job.cores)
    async with opened(job.dsn, 1) as database:
        client = _Client(job, database, await database.fetchval("select pg_backend_pid()"))
        print(msgspec.json.encode(await _work(client, len(job.consumers))).decode(), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)  # until its processor time has been read


if __name__ == "__main__":
    anyio.run(main, msgspec.json.decode(sys.argv[1], type=Job), backend_options={"use_uvloop": True})
