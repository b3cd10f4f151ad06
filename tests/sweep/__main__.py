"""`python -m tests.sweep`: every message of every scenario meets every fault.

`--scenario calls --fault before --at 17` runs one point again. `--pooler` puts a pgbouncer between the proxy and the server.
It ends with 1 if anything was lost, out of order or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support import servers
from tests.sweep.proxy import Fault
from tests.sweep.scenario import SCENARIOS
from tests.sweep.sweep import Report, lanes, sweep


def _direct(dsn: str) -> str:
    return dsn


async def run(options: argparse.Namespace, dsn: str, stack: ExitStack) -> Report:
    report = Report()
    through = _direct
    if options.pooler:
        from tests.pooler.conftest import pooling

        through = stack.enter_context(pooling(dsn)).url
    template = await asyncio.to_thread(servers.ensure_template, dsn)
    async with lanes(dsn, template, options.lanes, through) as worlds:
        for scenario in options.scenario or SCENARIOS:
            await sweep(worlds, scenario, options.fault or Fault, report, options.at)
            print(report, "\n", flush=True)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--fault", action="append", type=Fault, choices=list(Fault))
    parser.add_argument("--at", type=int, help="the number of a message")
    parser.add_argument("--lanes", type=int, default=2, help="how many points at a time, each in a database of its own")
    parser.add_argument("--pooler", action="store_true", help="through pgbouncer")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-sweep-")))
        stack.callback(servers.destroy, directory / "postgres")
        dsn = stack.enter_context(servers.server(directory / "postgres"))
        report = asyncio.run(run(options, dsn, stack))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
