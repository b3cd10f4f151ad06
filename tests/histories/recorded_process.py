"""A process that does a little of everything: `python -m tests.histories.recorded_process DSN`. With `freeze` it waits for
its end in a handler."""

from __future__ import annotations

import asyncio
import os
import sys

import anyio
import asyncpg

from headrace import App, Message, Transaction
from headrace.model.outcomes import Retry


async def main(dsn: str, freeze: bool) -> None:
    app = App(dsn, streams=["receipts"])

    @app.consumer("orders", backoff="1ms", ack_wait="2s")
    async def ship(number: int, message: Message) -> None:
        if freeze:
            os.write(1, b"frozen\n")
            await anyio.sleep_forever()
        if number == 2 and message.attempt == 1:
            raise Retry

    @app.consumer("orders", name="book", ack_wait="2s", transactional=True)
    async def book(number: int, tx: Transaction) -> None:
        await tx.publish("receipts", "k", number)

    @app.consumer("orders", name="count", ack_wait="2s")
    async def count(number: int, message: Message) -> None:
        connection = await asyncpg.connect(dsn)
        async with connection.transaction():
            await message.ack(tx=connection)
        await connection.close()

    async with app.running():
        await app.publish("orders", "a", 1)
        await app.publish_many("orders", [("b", 2), ("b", 3)])
        async with app.transaction() as tx:
            await tx.publish("orders", "c", 4)
        await app.publish("orders", "d", 5, message_id="five")
        await app.publish("orders", "d", 5, message_id="five")
        await app.idle()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], "freeze" in sys.argv))
