"""A worker that a test freezes: `python -m tests.torture.frozen_worker thread --dsn … --into FILE`.

Its handlers append a line to a file when they begin: the time on the clock of all processes, the key, the seq and the
attempt. It ends when its standard input is closed and nothing is left to do.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time

import anyio

from headrace import App, Message
from tests.torture.worker import report_event, standard_input_closed

ACK_WAIT = 1.0

PACE = 0.005


def begin(message: Message) -> None:
    """Note the beginning of a message. Each line is one write."""
    line = json.dumps([time.monotonic(), message.key, message.seq, message.attempt, os.getpid()])
    file = os.open(os.environ["FROZEN_INTO"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode() + b"\n")
    os.close(file)


async def handle(message: Message) -> None:
    begin(message)
    await anyio.sleep(PACE)


def handle_blocking(message: Message) -> None:
    begin(message)
    time.sleep(PACE)


async def main(options: argparse.Namespace) -> None:
    app = App(options.dsn, max_connections=4, shutdown_timeout="10s")
    handler = handle if options.runner == "async" else handle_blocking
    concurrency = 4 if options.runner == "process" else 32
    app.consumer(
        "orders", name="work", runner=options.runner, concurrency=concurrency, ack_wait=ACK_WAIT, max_deliver=-1
    )(handler)
    async with app.running():
        report_event(ready=True)
        await standard_input_closed()
        await app.idle()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("runner", choices=["async", "thread", "process"])
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--into", required=True)
    chosen = parser.parse_args()
    os.environ["FROZEN_INTO"] = chosen.into
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    # Handlers are imported by their module's name, which a worker process finds, too.
    from tests.torture import frozen_worker

    anyio.run(frozen_worker.main, chosen, backend_options={"use_uvloop": True})
