"""`python -m benchmarks NAME`: run a benchmark, print a table, write JSON."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.markup import escape

from benchmarks import checks, facts, harness, report
from benchmarks.chaos import command as chaos
from benchmarks.checks import CheckFailed
from benchmarks.figures import command as figures
from benchmarks.harness import Options
from benchmarks.peers import command as peers
from benchmarks.soak import command as soak
from benchmarks.suite import IN_ALL, SUITE

COMMANDS = {"chaos": chaos.main, "peers": peers.main, "report": figures.main, "soak": soak.main}
"""Commands with arguments of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and (command := COMMANDS.get(arguments[0])):
        # A shell ignores SIGINT for background processes, and SIGTERM alone would leave servers and workers.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        return command(arguments[1:])
    asked = _parser().parse_args(arguments)
    console = Console()
    if asked.name == "list":
        for name, benchmark in SUITE.items():
            print(f"{name:10} {benchmark.__doc__}")
        return 0
    names = IN_ALL if asked.name == "all" else [asked.name]
    done: list[dict[str, Any]] = []
    failed = []
    with harness.server(asked.database, asked.data_dir, stock=asked.stock) as url:
        options = Options(
            url, asked.quick, asked.repeats, asked.messages, asked.batch, asked.seconds, None, asked.index_keys
        )
        for name in names:
            try:
                with checks.plain():
                    done.append(anyio.run(_measure, name, options, backend_options={"use_uvloop": True}))
            except CheckFailed as wrong:
                failed.append(name)
                console.print(f"[bold red]{name} FAILED[/]: {escape(str(wrong))}", highlight=False)
                continue
            report.show(console, done[-1])
            if asked.json:
                report.write_json(asked.json, done)
    return 1 if failed else 0


async def _measure(name: str, options: Options) -> dict[str, Any]:
    known = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts.machine(),
        "versions": facts.versions(),
        "server": await facts.server(options.server),
    }
    result = await SUITE[name](options)
    result.settings["quick"] = options.quick
    return result.flat(known)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Headrace beside its raw limits.")
    parser.add_argument("name", choices=[*SUITE, "all", "list"], metavar="NAME", help=f"{', '.join(SUITE)}; all; list")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    parser.add_argument("--database", metavar="URL", help="a server to measure on; else one from the wheel is started")
    parser.add_argument(
        "--stock", action="store_true", help="start that server with the settings that Postgres comes with"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the started server keeps its data, and keep it"
    )
    parser.add_argument("--quick", action="store_true", help="few messages: whether it works, not how fast it is")
    parser.add_argument("--repeats", type=int, metavar="N", help="how often to measure; the median counts")
    parser.add_argument("--messages", type=int, metavar="N", help="how many messages a repeat has")
    parser.add_argument("--batch", type=int, metavar="N", help="messages per batch, in publish and lease")
    parser.add_argument("--index-keys", action="store_true", help="give the streams an index of keys")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long a paced phase takes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
