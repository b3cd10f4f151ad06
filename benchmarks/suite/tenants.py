"""tenants: one tenant publishes and receives at a steady pace, while another one and strangers attack the same server at full
speed."""

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
"""Length of each of the two parts, undisturbed and attacked."""

SLICES = 6
"""How many times the two parts take turns, so that what else happens on the machine falls into both."""

PACE = 0.02
"""Seconds between the beginnings of two rounds of the calm tenant."""

MAX_HEAVY = 1_000_000_000
"""Bytes that the heavy messages may have in the database. The oldest ones are deleted."""

LONGEST_REST = 30.0
"""Seconds within which the server has ended what an attacker began."""

LONGEST_FACTOR = 2.0
"""How much longer the 99th percentiles may be while the other tenant attacks."""

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
        await admin.create_stream(StreamSpec(name="heavy", max_storage=MAX_HEAVY))
        await admin.create_source(WebhookSpec(name="hook", stream="heavy"))
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
            undisturbed, attacked = Rounds(calm), Rounds(calm)
            slices = 1 if options.quick else SLICES
            for _ in range(slices):
                await undisturbed.go_on(seconds / slices)
                async with processes.started("benchmarks.tenant_attacker", str(server.port), hostile_token) as attacker:
                    assert attacker.stdout is not None
                    await attacker.stdout.receive()  # it has begun
                    await attacked.go_on(seconds / slices)
                await _at_rest(place.database)
    figures = {
        name: {"publish": milliseconds(rounds.publish), "receive": milliseconds(rounds.receive)}
        for name, rounds in (("undisturbed", undisturbed), ("attacked", attacked))
    }
    factors = {
        what: round(figures["attacked"][what]["p99_ms"] / figures["undisturbed"][what]["p99_ms"], 2)
        for what in ("publish", "receive")
    }
    if not options.quick:
        for what, factor in factors.items():
            about = f"the p99 of {what} is at most twice the undisturbed one ({factor} times, {figures})"
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
        details={**figures, "p99_factors": factors},
    )


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
    """Publish, receive and ack again and again, as one tenant.

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
