"""The scenarios, and a run of one: baseline, fault, recovery, judgement."""

from __future__ import annotations

import secrets
import tempfile
import time
from pathlib import Path

import anyio
import msgspec

from benchmarks.chaos import faults, grounds, traces
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.grounds import Enter
from benchmarks.chaos.ledger import Judgement, judge
from benchmarks.chaos.recovery import Phases, Recovery, recovery
from benchmarks.chaos.site import Plan, Site, own_connections, site
from headrace.admin import Admin

SETTLING = 2.0
"""Seconds at the pace before the baseline begins."""

PACED = 0.9
"""The share of the pace that a baseline must have."""

_EFFECTS = "select at, key, number from headrace_chaos.effects where run = $1 order by id"


class Scenario(msgspec.Struct, frozen=True):
    """A fault, and the ground that it needs."""

    fault: Fault
    enter: Enter = grounds.anywhere

    @property
    def about(self) -> str:
        return (self.fault.__doc__ or "").replace("\n    ", " ")


SCENARIOS: dict[str, Scenario] = {
    "restart": Scenario(faults.restart, grounds.own_server),
    "crash": Scenario(faults.crash, grounds.own_server),
    "crashes": Scenario(faults.crashes, grounds.own_server),
    "failover": Scenario(faults.failover, grounds.with_a_standby),
    "disk": Scenario(faults.disk, grounds.on_a_small_disk),
    "clock": Scenario(faults.clock, grounds.on_a_false_clock),
    "backends": Scenario(faults.backends),
    "slots": Scenario(faults.slots),
    "pool": Scenario(faults.pool),
    "idle": Scenario(faults.idle_transaction),
    "locks": Scenario(faults.locks),
    "snapshots": Scenario(faults.snapshots),
    "bursts": Scenario(faults.bursts),
    "cut": Scenario(faults.network_cut, grounds.behind_a_proxy),
    "slow": Scenario(faults.network_slow, grounds.behind_a_proxy),
    "silent": Scenario(faults.network_silent, grounds.behind_a_proxy),
    "pooler": Scenario(faults.pooler, grounds.behind_a_pooler),
    "frozen": Scenario(faults.frozen),
    "killed": Scenario(faults.killed),
}


class Limits(msgspec.Struct, frozen=True):
    """The demands on a recovery.

    Attributes:
        ratio: the lowest rate after it, as a share of the baseline.
        seconds: the longest time from the end of the fault until the work is back.
    """

    ratio: float = 0.95
    seconds: float = 5.0


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a scenario, by consumer where there is one for each.

    Attributes:
        pace: messages that were published per second in the baseline.
        fault_seconds: how long the fault lasted.
        refused: acks that the store refused, since their lease was lost.
        accidents: processes that ended by themselves.
        skipped: why the scenario can't be run here.
    """

    scenario: str
    about: str
    seconds: float = 0.0
    pace: float = 0.0
    fault_seconds: float = 0.0
    recoveries: dict[str, Recovery] = {}
    judgements: dict[str, Judgement] = {}
    refused: int = 0
    accidents: list[str] = []
    skipped: str | None = None

    @property
    def ratio(self) -> float:
        """The rate after the recovery, as a share of the baseline, of the consumer with the lowest."""
        return min(recovery.ratio for recovery in self.recoveries.values())

    @property
    def paced(self) -> bool:
        """Whether both consumers kept the pace in the baseline. Otherwise the machine is too slow for a judgement."""
        return all(recovery.baseline >= PACED * self.pace for recovery in self.recoveries.values())

    @property
    def back(self) -> float | None:
        """Seconds until the work of both consumers was back. None if it never was."""
        seconds = [recovery.seconds for recovery in self.recoveries.values()]
        return None if None in seconds else max(one for one in seconds if one is not None)

    def faults(self, limits: Limits) -> list[str]:
        """The faults, in words. Empty for a good outcome, and for a skipped scenario."""
        wrong = [f"{name}: {broken}" for name, judged in self.judgements.items() for broken in judged.broken]
        wrong += [accident.partition("\n")[0] for accident in self.accidents]
        if not self.recoveries:
            return wrong
        if not self.paced:
            return [*wrong, f"a consumer did not keep the pace of {self.pace:g}/s before the fault: lower it by --rate"]
        if self.ratio < limits.ratio:
            wrong.append(f"the rate stays below {limits.ratio:g} of its baseline")
        if self.back is None or self.back > limits.seconds:
            wrong.append(f"the recovery takes more than {limits.seconds:g} s")
        return wrong


async def run(name: str, plan: Plan, database: str | None) -> Outcome:
    """Run a scenario.

    Args:
        name: its name in `SCENARIOS`.
        plan: the load and the lengths of the phases.
        database: the URL of a disposable database. None for a server that is started for the scenario.
    """
    scenario, began = SCENARIOS[name], time.monotonic()
    try:
        async with scenario.enter(database) as ground:
            with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as home:
                stream = f"chaos-{name}-{secrets.token_hex(4)}"
                async with site(ground, plan, stream, Path(home)) as running:
                    outcome = await _run(name, scenario, running)
            if database is not None:
                await _remove(database, stream)
    except grounds.Skipped as why:
        return Outcome(name, scenario.about, skipped=str(why))
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


async def _run(name: str, scenario: Scenario, running: Site) -> Outcome:
    plan = running.plan
    await anyio.sleep(SETTLING)
    at = [time.monotonic()]
    await anyio.sleep(plan.baseline)
    at.append(time.monotonic())
    await scenario.fault(running, plan.fault)
    at.append(time.monotonic())
    await anyio.sleep(plan.recovery)
    at.append(time.monotonic())
    confirmed = await running.finish()
    traced = traces.read(running.home)
    async with own_connections(running.ground.direct) as database:
        rows = await database.fetch(_EFFECTS, running.stream)
    phases = Phases(*at)
    return Outcome(
        name,
        scenario.about,
        pace=plan.rate,
        fault_seconds=phases.over - phases.fault,
        recoveries={
            "ship": recovery([at for at, *_ in traced.handled], phases),
            "bill": recovery([row["at"] for row in rows], phases),
        },
        judgements={
            "ship": judge(confirmed, ((key, number) for _, key, number in traced.handled), once=False),
            "bill": judge(confirmed, ((row["key"], row["number"]) for row in rows), once=True),
        },
        refused=traced.refused,
        accidents=running.accidents,
    )


async def _remove(url: str, stream: str) -> None:
    async with own_connections(url) as database:
        await Admin(database).delete_stream(stream, force=True)
        await database.fetch("delete from headrace_chaos.effects where run = $1", stream)
        await database.fetch("delete from headrace_chaos.streams where name = $1", stream)
        if not await database.fetchval("select exists (select from headrace_chaos.streams)"):
            await database.fetch("drop table headrace_chaos.streams, headrace_chaos.effects")
            await database.fetch("drop schema headrace_chaos")
