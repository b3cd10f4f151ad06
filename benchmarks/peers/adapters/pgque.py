"""PgQue: a queue, a consumer for each reader, and a loop that receives, handles and acks by the batch.

Without pg_cron its documentation has the application call the ticker: at its own pace of 100 ms here, and of 10 ms where
latency counts, which its page on latency measures. An event waits for no more than one tick then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import asyncpg

from benchmarks.peers.process.adapter import Unable
from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler
from benchmarks.peers.process.sql import PooledAdapter, connect, decode, encode, run_script

QUEUE = "orders"
ALL = 2**31 - 1
"""A batch is acked as a whole, so all of it is received."""
RETRY_EVERY = 1.0
"""Seconds between two runs of the maintenance."""

RECEIVE = "select msg_id, batch_id, payload from pgque.receive($1, $2, $3)"
NACK = (
    "select pgque.nack($1, m, make_interval(secs => $2)) from pgque.get_batch_events($1) e,"
    " lateral (select row(e.ev_id, $1, e.ev_type, e.ev_data, e.ev_retry, e.ev_time, e.ev_extra1, e.ev_extra2,"
    " e.ev_extra3, e.ev_extra4)::pgque.message as m) as one where e.ev_id = $3"
)


class Peer(PooledAdapter):
    SETTINGS: ClassVar[dict[str, Any]] = {"sql": "", "tick_ms": 100, "paced_tick_ms": 10, "poll_ms": 5, "retry": 1.0}

    def __init__(self, url: str, settings: dict[str, Any], **job: Any) -> None:
        super().__init__(url, settings, **job)
        self._period = self.settings["paced_tick_ms" if self.paced else "tick_ms"]  # milliseconds
        self._sql = Path(self.settings["sql"]).read_text()

    async def set_up(self) -> None:
        await run_script(self.url, self._sql)
        connection = await connect(self.url)
        await connection.execute("select pgque.create_queue($1)", QUEUE)
        config = {"ticker_max_lag": f"{self._period} ms", "ticker_max_count": "1" if self.paced else "500"}
        for name, value in config.items():
            await connection.execute("select pgque.set_queue_config($1, $2, $3)", QUEUE, name, value)
        for reader in range(self.readers):
            await connection.execute("select pgque.subscribe($1, $2)", QUEUE, _consumer(reader))
        await connection.close()

    async def begin(self) -> None:
        self._ticking = asyncio.create_task(self._tick(await connect(self.url), self._period / 1000))

    async def _tick(self, connection: asyncpg.Connection[Any], period: float) -> None:
        """Do what pg_cron does where it is installed."""
        rounds = max(1, round(RETRY_EVERY / period))
        count = 0
        while True:
            await connection.execute("select pgque.ticker()")
            if (count := count + 1) % rounds == 0:
                await connection.execute("select pgque.maint_retry_events()")
                await connection.execute("select pgque.maint()")
            await asyncio.sleep(period)

    async def _send(self, connection: Any, messages: Sequence[Message], delay: float | None) -> None:
        if delay is not None:
            raise Unable("events for later are experimental, and not in its SQL file")
        texts = [encode(one.order).decode() for one in messages]
        if len(texts) == 1:
            await connection.execute("select pgque.send($1, $2::text)", QUEUE, texts[0])
        else:
            await connection.execute("select pgque.send_batch($1, 'default', $2::text[])", QUEUE, texts)

    async def remaining(self) -> int:
        return int(
            await self._pool.fetchval("select coalesce(sum(pending_events), 0) from pgque.get_consumer_info($1)", QUEUE)
        )

    async def stored(self) -> int:
        table = await self._pool.fetchval("select queue_data_pfx from pgque.queue where queue_name = $1", QUEUE)
        return int(await self._pool.fetchval(f"select count(*) from {table}"))

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        connection = await connect(self.url)
        try:
            while not stop.is_set():
                rows = await connection.fetch(RECEIVE, QUEUE, _consumer(reader), ALL)
                if not rows:
                    await asyncio.sleep(self.settings["poll_ms"] / 1000)
                elif handler.mode == "effect":
                    async with connection.transaction():
                        orders = [decode(row[2]) for row in rows]
                        await handler.run(orders, ordered=True, write=connection.execute)
                        await connection.execute("select pgque.ack($1)", rows[0][1])
                else:
                    await self._handle(connection, handler, rows)
        finally:
            await connection.close()

    async def _handle(self, connection: asyncpg.Connection[Any], handler: Handler, rows: list[Any]) -> None:
        if handler.mode == "fail":
            for row in rows:
                try:
                    await handler(decode(row[2]))
                except RuntimeError:
                    await connection.execute(NACK, row[1], self.settings["retry"], row[0])
        else:
            await handler.run([decode(row[2]) for row in rows], ordered=True)
        await connection.execute("select pgque.ack($1)", rows[0][1])


def _consumer(reader: int) -> str:
    return f"reader{reader}"
