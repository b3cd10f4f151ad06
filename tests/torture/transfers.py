"""Transfers between accounts, and their worker process: `python -m tests.torture.transfers single --dsn …`.

A transfer locks both accounts, moves the amount, records its seq in a journal, and publishes a receipt.
The same effects are made in two ways. One is the handler's transaction. The other is a separate
transaction with a later ack, as usual without `transactional`, so that the test can fail.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from typing import Any

import anyio
import asyncpg
import msgspec

from headrace import App, Message, Transaction
from headrace.runtime.messages.batch import Batch
from tests.torture.worker import entered, report_event, standard_input_closed

ACCOUNTS = 1000
OPENING = 1_000_000

TABLES = f"""
create table accounts (id int primary key, balance bigint not null);
insert into accounts select id, {OPENING} from generate_series(1, {ACCOUNTS}) as id;
create table journal (seq bigint not null);     -- not unique: what is made twice must be seen, not prevented

create function transfer(p_seq bigint, p_from int, p_to int, p_amount bigint) returns void language plpgsql as $$
begin
    perform from accounts where id in (p_from, p_to) order by id for update;
    update accounts set balance = balance - p_amount where id = p_from;
    update accounts set balance = balance + p_amount where id = p_to;
    insert into journal values (p_seq);
end $$;
"""

LOCK = (
    "select id from accounts where id = any ($1::int[]) order by id for update"  # or batches would wait for each other
)
TRANSFER = "select transfer($1, $2, $3, $4)"


class Transfer(msgspec.Struct):
    sender: int
    receiver: int
    amount: int


class Teller:
    """A handler that makes transfers slowly, and sometimes fails before the effect or after it."""

    def __init__(self, app: App, options: argparse.Namespace) -> None:
        self.app = app
        self.failures = options.failures
        self.pace = options.pace
        self.chance = random.Random(options.seed)
        self.pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def single(self, transfer: Transfer, message: Message, tx: Transaction) -> None:
        await self.work()
        await self.make(tx.connection, transfer, message)
        await tx.publish("receipts", message.key, message.seq)
        await self.work()

    async def batch(self, transfers: list[Transfer], batch: Batch, tx: Transaction) -> None:
        await self.work()
        accounts = {account for transfer in transfers for account in (transfer.sender, transfer.receiver)}
        await tx.fetch(LOCK, list(accounts))
        for transfer, message in zip(transfers, batch, strict=True):
            await self.make(tx.connection, transfer, message)
        await tx.publish_many("receipts", [(message.key, message.seq) for message in batch])
        await self.work()

    async def beside(self, transfer: Transfer, message: Message) -> None:
        """Make the same effects, but not in the transaction of the ack."""
        assert self.pool is not None
        await self.work()
        async with self.pool.acquire() as connection, connection.transaction():
            await self.make(connection, transfer, message)
            await self.app.publish("receipts", message.key, message.seq, tx=connection)
        await self.work()

    async def make(self, connection: Any, transfer: Transfer, message: Message) -> None:
        await connection.fetchval(TRANSFER, message.seq, transfer.sender, transfer.receiver, transfer.amount)

    async def work(self) -> None:
        if self.chance.random() < self.failures / 2:
            raise RuntimeError("a failure")
        await anyio.sleep(self.chance.random() * self.pace)


async def main(options: argparse.Namespace) -> None:
    app = App(options.dsn, max_connections=options.actors + 4, shutdown_timeout="10s")
    teller = Teller(app, options)
    settings: dict[str, Any] = {"transactional": True}
    if options.work == "batch":
        settings |= {"batch": 20}
    elif options.work == "beside":
        settings = {}
    app.consumer(
        "transfers", name="work", concurrency=options.actors, ack_wait=options.ack_wait, max_deliver=-1,
        backoff=["5ms", "20ms", "50ms"], **settings,
    )(getattr(teller, options.work))  # fmt: skip
    async with (
        asyncpg.create_pool(options.dsn, min_size=0, max_size=options.actors) as teller.pool,
        entered(app.running),
    ):
        report_event(ready=True)
        await standard_input_closed()
        await app.idle()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["single", "batch", "beside"])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ack-wait", default="1s")
    parser.add_argument("--actors", type=int, default=6)
    parser.add_argument("--failures", type=float, default=0.0, help="the share of handler runs that fail")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a handler takes in the mean")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    asyncio.run(main(parsed()))
