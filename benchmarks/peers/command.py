"""`python -m benchmarks peers`: Headrace beside other systems."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
from rich.console import Console

from benchmarks import facts, harness
from benchmarks.peers import chart, looking, results
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.comparing import Comparison, Settings
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.schedules import SCHEDULES
from benchmarks.peers.servers import free_port

INTERRUPTED = 130
"""The exit code of a command that was interrupted."""

QUICK_PEERS = ("headrace", "pgmq")
QUICK_JOBS = ("publish", "single", "drain", "work", "latency", "effects", "snapshot", "blocked")


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    console = Console(width=max(130, Console().width))  # a narrow pipe would cut the figures
    if asked.list:
        _list()
        return 0
    options = _options(parser, asked.opt)
    if asked.schedules:
        return _schedules(asked, options, console)
    names = asked.only or (QUICK_PEERS if asked.quick else tuple(PEERS))
    jobs = asked.jobs or (QUICK_JOBS if asked.quick else tuple(JOBS))
    # On TCP, since some peers don't know sockets, and Redis and NATS are on TCP, too.
    with harness.server(asked.database, asked.data_dir, stock=not asked.tuned, port=free_port()) as url:
        settings = Settings(
            postgres=url,
            names=names,
            jobs=jobs,
            options=options,
            repeats=asked.repeats or (1 if asked.quick else 3),
            seconds=asked.seconds or (0.5 if asked.quick else 1.2),
            processes=asked.processes,
            later=asked.later,
            later_seconds=asked.later_seconds,
            limit=asked.limit,
            budget=asked.minutes * 60,
        )
        known = _known(url) | {"settings": msgspec.to_builtins(settings) | {"postgres": asked.database or "embedded"}}
        comparison = Comparison(settings)
        rows = comparison.run()
    results.show(console, rows)
    if asked.json:
        asked.json.write_bytes(
            msgspec.json.format(msgspec.json.encode({**known, "results": [results.flat(row) for row in rows]})) + b"\n"
        )
    if asked.table:
        asked.table.write_text(results.markdown(rows))
    if asked.chart:
        charted = [row for row in rows if row.job in (asked.charted or jobs)]
        asked.chart.write_text(chart.svg(charted, chart.about(known)))
    if comparison.interrupted:
        return INTERRUPTED
    return 1 if results.broken(rows, "headrace") or not any(row.samples for row in rows) else 0


def _schedules(asked: argparse.Namespace, options: dict[str, dict[str, Any]], console: Console) -> int:
    names = asked.only or (QUICK_PEERS if asked.quick else tuple(PEERS))
    names = tuple(name for name in names if not PEERS[name].flushes_as_variant)
    with ExitStack() as stack:
        if asked.database:
            url, restart = asked.database, None
        else:
            postgres, url = stack.enter_context(
                harness.embedded(asked.data_dir, stock=not asked.tuned, port=free_port())
            )
            restart = partial(postgres.restart, "immediate")
        known = _known(url)
        seen = looking.look(url, restart, names, asked.schedules, options)
    looking.show(console, seen)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode({**known, "seen": seen})) + b"\n")
    if asked.table:
        asked.table.write_text(looking.markdown(seen))
    return 0


def _known(url: str) -> dict[str, Any]:
    """The facts on which results depend."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts.machine(),
        "versions": facts.versions(),
        "server": anyio.run(facts.server, url),
    }


def _list() -> None:
    for name, peer in PEERS.items():
        print(f"{name:14} {peer.title}: {', '.join(peer.packages) or peer.needs or 'this checkout'}")
    for name, job in JOBS.items():
        print(f"{name:14} {job.title}")
    for name, schedule in SCHEDULES.items():
        print(f"{name:14} {schedule.__doc__}")


def _options(parser: argparse.ArgumentParser, given: Sequence[str]) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for option in given:
        name, equals, value = option.partition("=")
        peer, dot, setting = name.partition(".")
        if not equals or not dot or peer not in PEERS:
            parser.error(f"--opt {option}: write PEER.SETTING=VALUE, with one of {', '.join(PEERS)}")
        options.setdefault(peer, {})[setting] = value
    return options


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}. There are {', '.join(known)}.")
        return chosen

    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks peers", description="Measure Headrace beside other systems, all in one harness."
    )
    add = parser.add_argument
    add("--list", action="store_true", help="list the peers and the jobs")
    add("--only", type=_names(tuple(PEERS)), metavar="PEER,…", help="some peers")
    add("--jobs", type=_names(tuple(JOBS)), metavar="JOB,…", help="some jobs")
    add("--quick", action="store_true", help="two peers and few messages: whether it works, not how fast it is")
    add("--opt", action="append", default=[], metavar="PEER.SETTING=VALUE", help="a setting of a peer")
    add("--database", metavar="URL", help="a Postgres server to measure on; else one from the wheel is started")
    add("--tuned", action="store_true", help="start that server with the settings of Headrace's embedded server")
    add("--data-dir", type=Path, metavar="DIR", help="where the started server keeps its data, and keep it")
    add("--processes", type=int, default=1, metavar="N", help="worker processes (default: 1; `cores` has one per core)")
    add("--repeats", type=int, metavar="N", help="how often each job is done (default: 3); the median counts")
    add("--seconds", type=float, metavar="S", help="about how long the measured part of a run takes (default: 1.2)")
    add("--later", type=int, default=1_000_000, metavar="N", help="messages that wait for later (default: 1,000,000)")
    add("--later-seconds", type=float, default=15, metavar="S", help="the time to publish them, at most (default: 15)")
    add("--limit", type=float, default=60, metavar="S", help="give up a run after this time (default: 60)")
    add("--minutes", type=float, default=35, metavar="M", help="repeat jobs no further after this time (default: 35)")
    add("--json", type=Path, metavar="FILE", help="write the results there, too")
    add("--table", type=Path, metavar="FILE", help="write the tables there as Markdown")
    add(
        "--schedules",
        nargs="?",
        const=tuple(SCHEDULES),
        type=_names(tuple(SCHEDULES)),
        metavar="NAME,…",
        help="instead of the jobs, run small schedules that show what each peer does with a fault",
    )
    add("--chart", type=Path, metavar="FILE.svg", help="draw the figures there")
    add("--charted", type=_names(tuple(JOBS)), metavar="JOB,…", help="the jobs in the chart (default: all)")
    return parser
