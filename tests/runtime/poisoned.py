"""A worker that one message kills: `python -m tests.runtime.poisoned DSN NOTES [single|batch]`. It
exits with 0 when no message is left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from headrace import App, Batch, Message

POISONED = 9
"""The exit code of a worker that the message has killed."""

MAX_DELIVER = 3


def taken(message: Message, notes: Path) -> None:
    if message.data == "poison":
        os._exit(POISONED)
    with notes.open("a") as file:
        print(message.seq, file=file)


async def main(dsn: str, notes: Path, kind: str) -> None:
    app = App(dsn)

    async def single(message: Message) -> None:
        await anyio.lowlevel.checkpoint()  # so that other handlers run beside it
        taken(message, notes)

    async def batch(batch: Batch) -> None:
        await anyio.lowlevel.checkpoint()
        for message in batch:
            taken(message, notes)

    settings = {"batch": 5} if kind == "batch" else {}
    app.consumer(
        "orders", name="ship", concurrency=4, ack_wait="1s", backoff=0, max_deliver=MAX_DELIVER, **settings
    )(batch if settings else single)  # fmt: skip
    async with app.running():
        await app.idle()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
