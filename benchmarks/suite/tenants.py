"""tenants: one tenant publishes and receives at a steady pace, while another one and strangers attack the same server at full
speed.

In a third part, the floor, the heavy messages of the attacker are stored straight into Postgres by a process of their own, as
many a second as the server stored. A commit waits until Postgres has written all that other transactions have logged before
it, 9 MB for a heavy message, and no server can make that shorter. So the calm tenant may take at most twice as long as
undisturbed, or twice as long as at the floor if that is longer.
"""

from __future__ import annotations

import random
import time

import anyio

from benchmarks import checks, processes
from benchmarks.harness import Options, bench
from benchmarks.http_server import HEADRACE, serving
from benchmarks.report import Result
from benchmarks.tenant_attacker import SLOW, Call, calling
from benchmarks.timing import Measured, milliseconds
from headrace.admin import Admin
from headrace.model.conditions import parse
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.sources.webhook import WebhookSpec
from headrace.store import Database

SECONDS = 120.0
"""Length of each of the three parts: undisturbed, attacked and the floor."""

SLICES = 6
"""How many times the parts take turns, so that what else happens on the machine falls into both."""

PACE = 0.02
"""Seconds between the beginnings of two rounds of the calm tenant."""

MAX_HEAVY = 1_000_000_000
"""Bytes that the heavy messages may have in the database. The oldest ones are deleted."""

LONGEST_REST = 30.0
"""Seconds within which the server has ended what an attacker began."""

LONGEST_FACTOR = 2.0
"""How much longer the 99th percentiles may be while the other tenant attacks, than the longer ones of the other two parts."""

_ACTIVE = """
    select count(*) from pg_stat_activity
    where backend_type = 'client backend' and state = 'active'
        and datname = current_database() and pid <> pg_backend_pid()
"""


async def tenants(options: Options) -> Result:
    """Publish and receive as one tenant, undisturbed and then beside another one and strangers that attack."""
    seconds = options.duration(SECONDS, 3)
    async with bench(options) as place:
        admin = Admin(place.database)
        for stream in ("calm", "hostile"):
            await admin.create_stream(stream)
        for stream in ("heavy", "forms"):
            await admin.create_stream(StreamSpec(name=stream, max_storage=MAX_HEAVY))
        await admin.create_source(WebhookSpec(name="hook", stream="forms"))
        await admin.create_consumer(ConsumerSpec(stream="calm", name="mine", max_ack_pending=100_000))
        for i in range(20):
            await admin.create_consumer(ConsumerSpec(stream="hostile", name=f"c{i}", where=parse(SLOW)))
        calm_token = (await admin.create_token("calm", ["publish:calm", "consume:calm"])).token
        hostile_token = (
            await admin.create_token(
                "hostile", ["publish:hostile", "consume:hostile", "admin:hostile", "publish:heavy"]
            )
        ).token
        async with (
            serving(HEADRACE, "--database", place.dsn) as server,
            calling(server.port, calm_token) as calm,
            calling(server.port, hostile_token) as hostile,
        ):
            await _fill(hostile)
            undisturbed, attacked, floor = Rounds(calm), Rounds(calm), Rounds(calm)
            slices = 1 if options.quick else SLICES
            part, heavy = seconds / slices, 0
            for _ in range(slices):
                await undisturbed.go_on(part)
                before = await _stored(place.database)
                await _beside(attacked, part, "benchmarks.tenant_attacker", str(server.port), hostile_token)
                await _at_rest(place.database)
                stored = await _stored(place.database) - before
                heavy += stored
                await _beside(floor, part, "benchmarks.tenant_storer", place.dsn, str(max(stored / part, 0.1)))
                await _at_rest(place.database)
    parts = {"undisturbed": undisturbed, "attacked": attacked, "floor": floor}
    figures = {
        name: {"publish": milliseconds(rounds.publish), "receive": milliseconds(rounds.receive)}
        for name, rounds in parts.items()
    }
    factors = {
        what: round(
            figures["attacked"][what]["p99_ms"]
            / max(figures[other][what]["p99_ms"] for other in ("undisturbed", "floor")),
            2,
        )
        for what in ("publish", "receive")
    }
    if not options.quick:
        for what, factor in factors.items():
            about = f"the p99 of {what} is at most twice the undisturbed one, or that at the floor ({factor} times, {figures})"
            checks.expect(factor <= LONGEST_FACTOR, True, about)
    measured = Measured()
    measured.samples.append(len(attacked.publish) / seconds)
    measured.limit_samples.append(len(undisturbed.publish) / seconds)
    return Result(
        benchmark="tenants",
        about="rounds of publish, receive and ack of one tenant, while another one and strangers attack the same server",
        measured=measured,
        limit_is="the same rounds without the attackers",
        unit="rounds/s",
        settings={"seconds": seconds, "slices": slices, "pace_s": PACE, "server_processes": 1},
        checks=["every call of the calm tenant was answered with 200", "every message was received once, in order"],
        details={**figures, "p99_factors": factors, "heavy_per_s": round(heavy / seconds, 1)},
    )


async def _stored(database: Database) -> int:
    """Return how many heavy messages have been stored so far."""
    return int(await database.fetchval("select coalesce(max(seq), 0) from headrace_streams.heavy"))


async def _beside(rounds: Rounds, seconds: float, module: str, *arguments: str) -> None:
    """Do rounds while a process runs."""
    async with processes.started(module, *arguments) as process:
        assert process.stdout is not None
        await process.stdout.receive()  # it has begun
        await rounds.go_on(seconds)


async def _fill(hostile: Call) -> None:
    chance = random.Random(7)
    for i in range(40):
        body = {"key": f"k{i}", "data": {"text": "".join(chance.choices("ab", k=200_000))}}
        status, _ = await hostile("POST", "hostile/messages", body)
        checks.expect(status, 200, "the status of a publish")


async def _at_rest(database: Database) -> None:
    """Wait until the server has done nothing for an attacker that has gone, for half a second."""
    quiet = 0
    with anyio.fail_after(LONGEST_REST):
        while quiet < 5:
            await anyio.sleep(0.1)
            quiet = 0 if await database.fetchval(_ACTIVE) else quiet + 1


class Rounds:
    """Publish, receive and ack repeatedly, as one tenant.

    Attributes:
        publish: the nanoseconds that each publish took.
        receive: those that each receive took.
    """

    def __init__(self, call: Call) -> None:
        self.publish: list[int] = []
        self.receive: list[int] = []
        self._call = call

    async def go_on(self, seconds: float) -> None:
        """Do as many rounds as fit into so many seconds at this pace."""
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            await self._round(len(self.publish))
            await anyio.sleep(max(0.0, began + PACE - time.monotonic()))

    async def _round(self, number: int) -> None:
        consumer = "calm/consumers/mine"
        at = time.perf_counter_ns()
        status, _ = await self._call("POST", "calm/messages", {"key": "k", "data": number})
        published = time.perf_counter_ns()
        checks.expect(status, 200, "the status of a publish")
        status, answer = await self._call("POST", f"{consumer}/receive", {"batch_size": 10, "wait_for": "10s"})
        received = time.perf_counter_ns()
        checks.expect(status, 200, "the status of a receive")
        checks.expect([one["message"]["data"] for one in answer["data"]], [number], "the messages received")
        status, _ = await self._call("POST", f"{consumer}/ack", {"ack_ids": [one["ack_id"] for one in answer["data"]]})
        checks.expect(status, 200, "the status of an ack")
        self.publish.append(published - at)
        self.receive.append(received - published)
