"""The process for large bodies: `python -m headrace.server.decoding.process`.

It reads jobs from its standard input, decodes their bodies one after the other, publishes the messages, and writes the
results to its standard output as they come. It ends with its standard input, and so with the server.

    job     its number, sizes of head and body · `Job` (MessagePack) · body
    reply   number of the job, size · `Published`, or the exception (pickled)
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import struct
import sys
from functools import partial

import msgspec

from headrace import store
from headrace.model.errors import HeadraceError
from headrace.server.data_plane.publish_batching import Incoming, publish_alone
from headrace.server.decoding.jobs import Job, Published, Target, decoded, naming_field, published
from headrace.server.errors import problem_of

JOB = struct.Struct(">III")
REPLY = struct.Struct(">II")
READY = b"\n"
"""What the process writes when it is ready."""

PLACES = 3
"""Bodies in the process at a time. While one is stored, the next one is decoded."""

PLACES_OF_CALLER = 2
"""Those of one caller. If its stream can't be written to, for example since a table is locked, others have a place left."""

NICENESS = 10
"""How far the process stands back behind the server, which answers everyone else."""

_decode_job = msgspec.msgpack.Decoder(Job).decode


def head_of(number: int, job: Job, size: int) -> bytes:
    """Return what precedes a body of so many bytes."""
    encoded = msgspec.msgpack.encode(job)
    return JOB.pack(number, len(encoded), size) + encoded


def result_of(reply: bytes) -> Published | Exception:
    """Return what a reply contains."""
    found: Published | Exception = pickle.loads(reply)
    return found


class Databases:
    """The databases to which this process publishes. Each is opened for its first body, and closed with the process."""

    def __init__(self) -> None:
        self._opened: dict[Target, asyncio.Task[store.Database]] = {}

    async def find(self, target: Target) -> store.Database:
        """Return an open database. Raises what `store.Database.open` does."""
        opening = self._opened.get(target)
        if opening is None:
            opening = self._opened[target] = asyncio.create_task(_open(target))
        try:
            return await opening
        except BaseException:
            if self._opened.get(target) is opening:
                del self._opened[target]
            raise


async def _open(target: Target) -> store.Database:
    database = store.Database(
        target.dsn,
        max_connections=PLACES,
        application_name=target.application_name,
        connect_timeout=target.connect_timeout,
    )
    await database.open()
    return database


class Publishing:
    """Publishes decoded messages, and writes the replies."""

    def __init__(self) -> None:
        self._databases = Databases()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, number: int, job: Job, body: bytes) -> None:
        """Decode a body, and begin to publish its messages."""
        try:
            messages = decoded(body, job.head)
        except Exception as error:
            _reply(number, error)
            return
        task = asyncio.create_task(self._publish(number, job, messages))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, number: int, job: Job, messages: Incoming) -> None:
        result: Published | Exception
        try:
            with naming_field(messages, job.head):
                count = await publish_alone(await self._databases.find(job.target), job.stream, messages)
            result = published(messages, count)
        except Exception as error:
            result = error
        _reply(number, result)
        gc.collect()


def _reply(number: int, result: Published | Exception) -> None:
    if isinstance(result, Exception) and not isinstance(result, HeadraceError):
        result = problem_of(result)  # others can't all be pickled, and a traceback can't be
    reply = pickle.dumps(result)
    sys.stdout.buffer.write(REPLY.pack(number, len(reply)) + reply)
    sys.stdout.buffer.flush()


async def main() -> None:
    """Publish bodies until the standard input ends."""
    gc.freeze()
    gc.disable()  # bodies have no cycles, and looking for some takes as long as decoding
    os.nice(NICENESS)
    publishing = Publishing()
    read = partial(asyncio.get_running_loop().run_in_executor, None, sys.stdin.buffer.read)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    while len(sizes := await read(JOB.size)) == JOB.size:
        number, head_size, body_size = JOB.unpack(sizes)
        head, body = await read(head_size), await read(body_size)
        if len(body) == body_size:
            publishing.begin(number, _decode_job(head), body)
        del body


if __name__ == "__main__":
    asyncio.run(main())
