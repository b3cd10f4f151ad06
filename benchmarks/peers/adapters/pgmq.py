"""pgmq: a queue for each reader, its SQL functions, and a loop that reads, handles and deletes by the batch.

Its documentation recommends batches, `delete` where no archive is wanted, the read functions of FIFO queues with their
index where order counts, and topics where several queues get a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import resources
from typing import Any, ClassVar

import asyncpg

from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import PooledAdapter, connect, decode, encode, run_script

SEND_BATCH = "select pgmq.send_batch($1, $2::text[]::jsonb[], $3::text[]::jsonb[], $4::integer)"
SEND = "select pgmq.send($1, $2::text::jsonb, $3::text::jsonb, $4::integer)"
SEND_TOPIC = "select pgmq.send_batch_topic($1, $2::text[]::jsonb[], $3::text[]::jsonb[], $4::integer)"
READ = "select msg_id, message::text from pgmq.{read}($1, $2::integer, $3::integer)"
DELETE = "select pgmq.delete($1, $2::bigint[])"
DELETE_ONE = "select pgmq.delete($1, $2::bigint)"
TOPIC = "orders.created"


class Peer(PooledAdapter):
    SETTINGS: ClassVar[dict[str, Any]] = {
        "vt": 30,  # seconds
        "batch": 1000,
        "loops": 2,  # of a worker, each with a connection
        "transactions": 7,  # loops where each ack has a transaction of its own, as many as Headrace has handlers
        "poll_ms": 5,
        "fifo_read": "read_grouped_rr",
    }

    async def set_up(self) -> None:
        await run_script(self.url, resources.files("pgmq").joinpath("sql", "pgmq.sql").read_text())
        connection = await connect(self.url)
        try:
            for reader in range(self.readers):
                await connection.execute("select pgmq.create($1)", _queue(reader))
                if self.ordered:
                    await connection.execute("select pgmq.create_fifo_index($1)", _queue(reader))
                if self.readers > 1:
                    await connection.execute("select pgmq.bind_topic($1, $2)", TOPIC, _queue(reader))
        finally:
            await connection.close()

    async def _send(self, connection: Any, messages: Sequence[Message], delay: float | None) -> None:
        texts = [encode(one.order).decode() for one in messages]
        headers = [f'{{"x-pgmq-group": "{one.key}"}}' for one in messages]
        seconds = round(delay or 0)
        if self.readers > 1:
            await connection.execute(SEND_TOPIC, TOPIC, texts, headers, seconds)
        elif len(messages) == 1:
            await connection.execute(SEND, _queue(0), texts[0], headers[0], seconds)
        else:
            await connection.execute(SEND_BATCH, _queue(0), texts, headers, seconds)

    async def remaining(self) -> int:
        counts = " + ".join(
            f"(select count(*) from pgmq.q_{_queue(reader)} where vt < now() + interval '1 hour')"
            for reader in range(self.readers)
        )
        return int(await self._pool.fetchval(f"select {counts}"))

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        singles = handler.mode == "effect" and self.transaction == 1
        loops = self.settings["transactions" if singles else "loops"]
        async with asyncio.TaskGroup() as group:
            for _ in range(loops):
                group.create_task(self._loop(handler, _queue(reader), stop))

    async def _loop(self, handler: Handler, queue: str, stop: asyncio.Event) -> None:
        read = READ.format(read=self.settings["fifo_read"] if self.ordered else "read")
        vt, batch = self.settings["vt"], self.settings["batch"]
        if handler.mode == "effect":
            batch = 100
        connection = await connect(self.url)
        try:
            while not stop.is_set():
                rows = await connection.fetch(read, queue, vt, batch)
                if not rows:
                    await asyncio.sleep(self.settings["poll_ms"] / 1000)
                elif handler.mode == "effect":
                    await self._in_transactions(connection, handler, queue, rows)
                else:
                    await self._handle(connection, handler, queue, rows)
        finally:
            await connection.close()

    async def _handle(self, connection: asyncpg.Connection[Any], handler: Handler, queue: str, rows: list[Any]) -> None:
        try:
            await handler.run([decode(row[1]) for row in rows], ordered=self.ordered)
        except RuntimeError:  # those of the batch that succeeded are not told apart here: all come again after the vt
            return
        await connection.execute(DELETE, queue, [row[0] for row in rows])

    async def _in_transactions(
        self, connection: asyncpg.Connection[Any], handler: Handler, queue: str, rows: list[Any]
    ) -> None:
        if self.transaction > 1:
            async with connection.transaction():
                await handler.run([decode(row[1]) for row in rows], ordered=False, write=connection.execute)
                await connection.execute(DELETE, queue, [row[0] for row in rows])
            return
        for row in rows:
            async with connection.transaction():
                await handler(decode(row[1]), connection.execute)
                await connection.execute(DELETE_ONE, queue, row[0])


def _queue(reader: int) -> str:
    return f"orders{reader}"
