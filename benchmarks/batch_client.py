"""A client of a queue that is acked by the batch, which `drain` compares a worker's processor time with.

`python -m benchmarks.batch_client --dsn URL --size N`

It does what PgQue's client for Python does: one transaction reads a batch over psycopg, makes an object of ten fields of
each row, calls a plain function with it, and acks all of them together. There is neither order per key, nor an ack
for a message, nor a second batch while the first is in work. The batch comes from a plain table, so Postgres does
less, too, but only this process is measured. The function decodes the payload as the worker's handler does.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from datetime import datetime

import msgspec
import psycopg

from benchmarks.payloads import Order

READ = (
    "select id, %s::bigint, 'default'::text, data::text, null::int, created_at, key, null::text, null::text, null::text"
    " from plain_log where id > %s order by id limit %s"
)
ACK = "update batch_client set position = %s"


@dataclass
class Event:
    """A row, as the handler gets it."""

    id: int
    batch: int
    type: str | None
    payload: str
    retries: int | None
    created_at: datetime
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None


class Used(msgspec.Struct):
    """The number of messages, and the seconds of this process's CPU time."""

    messages: int
    cpu: float


def drain(dsn: str, size: int) -> Used:
    """Read all of the plain table, `size` rows at a time, and handle each row."""
    numbers: list[int] = []
    decode = msgspec.json.Decoder(Order).decode

    def handle(event: Event) -> None:
        numbers.append(decode(event.payload).number)

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table if not exists batch_client as select 0::bigint as position")
        batch = position = 0
        began = time.process_time()
        while True:
            batch += 1
            with connection.transaction():
                rows = connection.execute(READ, (batch, position, size)).fetchall()
                events = [
                    Event(
                        id=row[0], batch=row[1], type=row[2], payload=row[3], retries=row[4], created_at=row[5],
                        extra1=row[6], extra2=row[7], extra3=row[8], extra4=row[9],
                    )
                    for row in rows
                ]  # fmt: skip
                if not events:
                    break
                for event in events:
                    try:
                        handle(event)
                    except Exception:
                        raise SystemExit("The handler failed.") from None
                position = events[-1].id
                connection.execute(ACK, (position,))
        return Used(len(numbers), time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--size", type=int, required=True)
    asked = parser.parse_args()
    print(msgspec.json.encode(drain(asked.dsn, asked.size)).decode())


if __name__ == "__main__":
    main()
