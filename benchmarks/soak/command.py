"""`python -m benchmarks soak`: run everything at a steady pace, watch it, and judge what grew."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import facts, harness
from benchmarks.harness import Bench, Options, bench
from benchmarks.soak.judge import Series, Trend, trend
from benchmarks.soak.service import CONSUMERS, HTTP, TABLES
from benchmarks.soak.watch import Watch
from headrace import store
from headrace.admin import Admin
from tests.torture.fleet import Worker, spawn
from tests.torture.http_servers import ServerProcess

MODULE = "benchmarks.soak.service"

LOOKS = 120
"""Samples of a run. A short run has one a second."""

STARTING = 120.0
"""Seconds that a process may take to start."""

SHOWN = 20
"""Rows of the table: what grew most, as a share of the growth that is allowed."""


class Found(msgspec.Struct):
    """The outcome of a soak.

    Attributes:
        did: how often each thing was done.
        series: all samples.
        trends: the judgements, what grew most first.
        accidents: processes that ended by themselves, each with the end of its log.
    """

    did: dict[str, int]
    series: list[Series]
    trends: list[Trend]
    accidents: list[str]

    @property
    def broken(self) -> list[str]:
        """The faults, in words."""
        leaks = [f"{one.kind} of {one.name} grew by {amount(one.growth)}" for one in self.trends if one.leaks]
        return leaks + [accident.partition("\n")[0] for accident in self.accidents]


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns 1 if something leaks, or if a process has ended by itself."""
    asked = parser().parse_args(arguments)
    console = Console()
    with harness.server(asked.database) as url:
        found = anyio.run(soak, url, asked.seconds, asked.rate)
    _show(console, found)
    for accident in found.accidents:
        console.print(accident, markup=False, highlight=False)
    if asked.json:
        about = {"seconds": asked.seconds, "rate": asked.rate, "broken": found.broken, "machine": facts.machine()}
        text = msgspec.json.encode({**about, **msgspec.to_builtins(found)})
        asked.json.write_bytes(msgspec.json.format(text) + b"\n")
    return 1 if found.broken else 0


async def soak(url: str, seconds: float, rate: float) -> Found:
    """Run everything in a fresh database of a server.

    Args:
        url: the server. The database is dropped at the end.
        seconds: how long.
        rate: messages that are published per second.
    """
    async with bench(Options(url)) as place, AsyncExitStack() as stack:
        async with place.database.transaction() as connection:
            await connection.execute(TABLES)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-soak-")))
        crew: dict[str, Worker] = {}
        common: dict[str, Any] = {"url": place.dsn, "seconds": seconds, "rate": rate}
        for name in ("worker-1", "worker-2"):
            crew[name] = await stack.enter_async_context(_started(name, home, **common))
        await Admin(place.database).create_consumer(HTTP)
        server = ServerProcess(place.dsn, home / "server.log")
        stack.callback(server.stop)
        server.begin()
        with anyio.fail_after(STARTING):
            while not server.ready():  # noqa: ASYNC110 - a process is asked
                await anyio.sleep(0.1)
        crew["publisher"] = await stack.enter_async_context(_started("publisher", home, **common))
        crew["clients"] = await stack.enter_async_context(_started("clients", home, port=server.port, **common))
        observer = await asyncpg.connect(place.dsn)
        try:
            watch = Watch({**{name: one.process.pid for name, one in crew.items()}, "server": server.pid}, observer)
            await _watch(watch, place, crew, seconds)
            end = watch.seconds
        finally:
            await observer.close()
        accidents = await _end(crew)
    did = sum((Counter(line["did"]) for one in crew.values() for line in one.lines if "did" in line), Counter[str]())
    trends = [found for series in watch.series.values() if (found := trend(series, end))]
    trends.sort(key=lambda one: (not one.leaks, -one.growth / one.allowed))
    return Found(dict(did), list(watch.series.values()), trends, accidents)


async def _watch(watch: Watch, place: Bench, crew: dict[str, Worker], seconds: float) -> None:
    while watch.seconds < seconds and all(one.process.returncode is None for one in crew.values()):
        await watch.look()
        for stream, name in CONSUMERS:
            info = await store.consumer(place.database, stream, name)
            watch.note_lag(f"{stream}/{name}", info.lag + info.parked)
        await anyio.sleep(max(1.0, seconds / LOOKS))


@asynccontextmanager
async def _started(name: str, home: Path, **options: Any) -> AsyncIterator[Worker]:
    """A process of the soak that is ready, killed at the end if it still runs."""
    process = await spawn(name.partition("-")[0], home / f"{name}.log", module=MODULE, **options)
    reading = asyncio.create_task(process.read())
    try:
        ready = asyncio.create_task(process.said(lambda lines: {"ready": True} in lines))
        await asyncio.wait([ready, reading], return_when=asyncio.FIRST_COMPLETED, timeout=STARTING)
        if not ready.done():
            raise AssertionError(f"{name} is not ready: {process.last_words()}")
        yield process
    finally:
        if process.process.returncode is None:
            process.process.kill()
        await asyncio.wait([reading])


async def _end(crew: dict[str, Worker]) -> list[str]:
    """End the processes, those that publish first. Returns the accidents."""
    accidents = []
    for name, one in reversed(crew.items()):
        early = one.process.returncode
        one.finish()
        with anyio.move_on_after(30):
            await one.process.wait()
        if early is not None or one.process.returncode != 0:
            accidents.append(f"{name} ended with {one.process.returncode}:\n{one.last_words()}")
    return accidents


def _show(console: Console, found: Found) -> None:
    console.print(", ".join(f"{count:,} {what}" for what, count in found.did.items()), highlight=False)
    table = Table(title=f"what grew most, of {len(found.trends)} series", title_justify="left")
    for heading in ("of", "figure", "level", "growth", "allowed", ""):
        table.add_column(heading, no_wrap=heading != "of")
    for one in found.trends[:SHOWN]:
        figures = (amount(one.level), amount(one.growth), amount(one.allowed))
        table.add_row(one.name, one.kind, *figures, "[bold red]LEAKS[/]" if one.leaks else "level")
    console.print(table)


def amount(value: float) -> str:
    """A number of bytes or of things, in short."""
    for unit in ("", "k", "M"):
        if abs(value) < 10_000:
            return f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.0f}G"


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    options = argparse.ArgumentParser(prog="python -m benchmarks soak", description="All features, watched for leaks.")
    options.add_argument("--seconds", type=float, default=3600, metavar="S", help="how long (3600)")
    options.add_argument("--rate", type=float, default=200, metavar="N", help="messages published per second (200)")
    options.add_argument("--database", metavar="URL", help="a server on which a database is made; else one is started")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the samples and the judgements there, too")
    return options
