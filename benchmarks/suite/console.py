"""console: what the console costs the database and the server, with 0, 1 and 20 browsers open, and its first page."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks import checks
from benchmarks.browsers import INTERVAL, PATHS, VIEWS, Asked, first_token, light, once, percentile, real, sign_in
from benchmarks.checks import CheckFailed
from benchmarks.console_server import FILE, Tally
from benchmarks.first_page import MOST_BYTES, OPENINGS, FirstPage, first_page
from benchmarks.harness import Bench, Options, bench
from benchmarks.http_server import serving
from benchmarks.processes import started
from benchmarks.processor_time import Meter, postmaster
from benchmarks.report import Result
from benchmarks.timing import Measured
from headrace import store
from headrace.model.specs import ConsumerSpec

BROWSERS = (0, 1, 20)
CONSUMERS = 10
QUERIES = 15
"""The most statements a second that the console may cost, however many look on: 4 of snapshots, 2 that check tokens and sessions, and
one view with up to 7, with BEGIN and COMMIT. On a server of few streams they are 13, on one of many a snapshot is rarer."""

SHORT = 0.2
"""Seconds that a statement of the console may take at best: the one that reads the cursors of 10,000 consumers takes 40 to 60 ms on
two slow cores, and 120 while their neighbours are busy. It also waits for a core, so that the average is longer."""

WARM_UP = 5.0
BUSY = 10
"""The streams that have messages."""

RATE = 10_000
SMALL, SMALL_RATE = 10, 1_000
"""Streams, and messages a second, of the small server whose first page is measured, too."""

SERVER = ["-m", "benchmarks.console_server", "serve", "--host", "127.0.0.1", "--log-level", "warning"]


async def console(options: Options) -> Result:
    """Look on with 0, 1 and 20 signed-in browsers, one of them a real one, at a server of 1,000 streams and 10,000 consumers."""
    streams = SMALL if options.quick else 1000
    rate = options.messages or (SMALL_RATE if options.quick else RATE)
    seconds = options.duration(20, 4)
    pages = {}
    if not options.quick:
        async with _looked_at(options, SMALL, SMALL_RATE) as small:
            pages[SMALL] = await small.first_page(options)
    async with _looked_at(options, streams, rate) as looked:
        pages[streams] = await looked.first_page(options)
        phases = {count: await looked.on(count, seconds) for count in BROWSERS}
    idle = phases[0].pop("statements")
    costs = {}
    for count, phase in phases.items():
        if count:
            phase["costs"] = {
                name: found
                for name, one in phase.pop("statements").items()
                if (found := _added(one, idle.get(name, {}))) is not None
            }
            costs[count] = phase["queries_of_console_per_second"] = sum(
                one["per_second"] for one in phase["costs"].values()
            )
    _check(phases, costs)
    return Result(
        benchmark="console",
        about="queries a second that 20 browsers cost the database",
        measured=Measured([costs[20]], [costs[1]]),
        limit_is="the same with 1 browser",
        unit="queries/s",
        details={f"first page on {count} streams": _printed(page) for count, page in pages.items()}
        | {f"with {count} browsers": phase for count, phase in phases.items()}
        | {"statements of the server at 0 browsers": idle},
        settings={
            "streams": streams, "consumers": streams * CONSUMERS, "messages_per_second": rate, "seconds": seconds,
            "interval_seconds": INTERVAL, "paths": [*PATHS, *VIEWS],
        },
        checks=[
            f"at most {QUERIES} queries a second, however many look on",
            f"each of them takes at most {SHORT * 1000:.0f} ms at best",
            "each answer was 200 or 304",
            f"the first page takes at most {MOST_BYTES:,} bytes",
        ],
    )  # fmt: skip


def _added(one: dict[str, float], before: dict[str, float]) -> dict[str, float] | None:
    """The cost that browsers add to a statement. None if it is noise: a statement that the server sends anyway."""
    added = one["per_second"] - before.get("per_second", 0.0)
    return {**one, "per_second": added} if added > 0.05 else None


def _check(phases: dict[int, dict[str, Any]], costs: dict[int, float]) -> None:
    for count, cost in costs.items():
        if cost > QUERIES:
            raise CheckFailed(
                f"{count} browsers cost the database {cost:.1f} queries a second, and {QUERIES} are allowed: {phases[count]['costs']}"
            )
        for name, one in phases[count]["costs"].items():
            if one["shortest_ms"] > SHORT * 1000:
                raise CheckFailed(f"{name} took at least {one['shortest_ms']:.0f} ms with {count} browsers.")


def _printed(page: FirstPage | None) -> dict[str, Any] | str:
    return "not measured, since no Chromium is installed" if page is None else msgspec.structs.asdict(page)


@asynccontextmanager
async def _looked_at(options: Options, streams: int, rate: float) -> AsyncIterator[Looking]:
    """Run a server of so many streams, on which `rate` messages a second are published and handled."""
    async with bench(options) as place, AsyncExitStack() as stack:
        await _furnish(place, streams)
        tally = Path(stack.enter_context(tempfile.TemporaryDirectory()), "tally.json")
        os.environ[FILE] = str(tally)
        await stack.enter_async_context(_load(place, min(BUSY, streams), rate))
        server = await stack.enter_async_context(serving(SERVER, "--database", place.dsn))
        token = await first_token(server.port)
        await once(server.port, await sign_in(server.port, token))
        postgres = postmaster(await place.database.fetchval("select pg_backend_pid()"))
        yield Looking(place, server.port, server.pid, postgres, tally, token)


async def _furnish(place: Bench, streams: int) -> None:
    for number in range(streams):
        await store.create_stream(place.database, f"idle-{number}")
        for consumer in range(CONSUMERS):
            await store.declare_consumer(place.database, ConsumerSpec(stream=f"idle-{number}", name=f"c{consumer}"))


@asynccontextmanager
async def _load(place: Bench, streams: int, rate: float) -> AsyncIterator[None]:
    """Publish and handle messages in another process."""
    names = ",".join(f"idle-{number}" for number in range(streams))
    async with started("benchmarks.console_load", place.dsn, names, str(rate)) as process:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        checks.expect((await lines.receive_until(b"\n", 100)).strip(), b"ready", "its first line")
        yield


class Looking(msgspec.Struct):
    """Looks on with browsers, and measures what it takes."""

    place: Bench
    port: int
    pid: int
    postgres: int | None
    tally: Path
    token: str

    async def first_page(self, options: Options) -> FirstPage | None:
        """Open the first page, beside the load."""
        return await first_page(self.port, await self._session(), options.times(OPENINGS, 3))

    async def on(self, browsers: int, seconds: float) -> dict[str, Any]:
        """Look on with so many browsers, of which one is real, and return what it takes."""
        asked, detailed, stop = Asked(), Asked(), asyncio.Event()
        async with AsyncExitStack() as stack:
            real_ones = int(browsers > 0 and await stack.enter_async_context(real(self.port, await self._session())))
            lights = browsers - real_ones
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for number in range(lights):
                view = VIEWS[number % len(VIEWS)].format(number=number % BUSY)
                offset = number * INTERVAL / lights
                cookie = await self._session()
                group.create_task(light(self.port, cookie, PATHS, asked, stop, offset))
                group.create_task(light(self.port, cookie, (view,), detailed, stop, offset))
            try:
                await asyncio.sleep(WARM_UP)
                before, transactions = await self._tallies(), await _transactions(self.place)
                published = await _published(self.place)
                meter, asked.took = Meter(server=self.pid, postgres=self.postgres), []
                await asyncio.sleep(seconds)
                used, after = meter.read(), await self._tallies()
                transactions = await _transactions(self.place) - transactions
                published = await _published(self.place) - published
            finally:
                stop.set()
        statements = {
            name: {
                "per_second": (one.count - before.get(name, Tally()).count) / used["wall"],
                "average_ms": (one.seconds - before.get(name, Tally()).seconds) / count * 1000,
                "shortest_ms": one.shortest * 1000,
                "longest_ms": one.longest * 1000,
            }
            for name, one in after.items()
            if (count := one.count - before.get(name, Tally()).count)
        }
        return {
            "real": real_ones,
            "queries_of_server_per_second": sum(one["per_second"] for one in statements.values()),
            "published_per_second": published / used["wall"],
            "transactions_of_all_per_second": transactions / used["wall"],
            "cores_of_server": used.get("server", 0.0) / used["wall"],
            "cores_of_postgres": used.get("postgres", 0.0) / used["wall"],
            "requests": asked.requests,
            "unchanged": asked.unchanged,
            "p50_ms": percentile(asked.took, 0.5),
            "p99_ms": percentile(asked.took, 0.99),
            "requests_of_views": detailed.requests,
            "views_refreshed_later": detailed.later,
            "views_p50_ms": percentile(detailed.took, 0.5),
            "statements": statements,
        }

    async def _session(self) -> str:
        return await sign_in(self.port, self.token)

    async def _tallies(self) -> dict[str, Tally]:
        """The server's counts of its statements."""
        self.tally.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        while not self.tally.exists():  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.01)
        return msgspec.json.decode(self.tally.read_bytes(), type=dict[str, Tally])


async def _published(place: Bench) -> int:
    """The messages that the load has published so far."""
    return sum((await store.live_figures(place.database)).drawn.values())


async def _transactions(place: Bench) -> int:
    """The transactions of the database so far, also those of the load."""
    return int(
        await place.database.fetchval(
            "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
        )
    )
