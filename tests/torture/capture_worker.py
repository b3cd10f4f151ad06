"""A process that captures, for tests that kill it: `python -m tests.torture.capture_worker capture --dsn …`.

It writes its log to standard output as lines of JSON, and ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import logging
import sys

import anyio

from headrace import App
from headrace.sources.postgres.capture.capturing import Capturing
from tests.torture.worker import EventLogHandler, report_event, standard_input_closed


async def main(options: argparse.Namespace) -> None:
    app = App(options.dsn, shutdown_timeout="10s")
    app.attach(Capturing())
    async with app.running():
        report_event(ready=True)
        await standard_input_closed()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["capture"])
    parser.add_argument("--dsn", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("headrace").addHandler(EventLogHandler(logging.INFO))
    anyio.run(main, parsed(), backend_options={"use_uvloop": True})
