"""Every message of the protocol meets a fault, and nothing is lost, out of order or doubled."""

from __future__ import annotations

import os
from typing import Any

import pytest

from headrace import store
from tests.sweep.proxy import CountingProxy, Fault
from tests.sweep.scenario import SCENARIOS, Few, World, out_of_order, world
from tests.sweep.sweep import Report, lanes, sweep

LANES = int(os.environ.get("HEADRACE_TEST_LANES", "2"))


@pytest.mark.asyncio
async def test_no_cut_at_any_message_loses_or_doubles_anything(server_dsn: str, template: str) -> None:
    report = Report()
    async with lanes(server_dsn, template, LANES) as worlds:
        await sweep(worlds, "few", (Fault.BEFORE, Fault.UNANSWERED), report)
    judged(report)


@pytest.mark.asyncio
@pytest.mark.torture
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("route", ["direct", "pooler"])
async def test_no_fault_at_any_message_loses_or_doubles_anything(
    server_dsn: str, template: str, request: pytest.FixtureRequest, scenario: str, route: str
) -> None:
    through = request.getfixturevalue("through") if route == "pooler" else str
    report = Report()
    async with lanes(server_dsn, template, LANES, through) as worlds:
        await sweep(worlds, scenario, Fault, report)
    judged(report)


def judged(report: Report) -> None:
    print(report)
    assert report.failures == []
    assert all(count >= 0.9 * report.messages[scenario] for (scenario, _), count in report.points.items())


# --- the sweep finds what it looks for


class Forgetful(Few):
    """It forgets what no publish has confirmed."""

    async def publish(self, publisher: Any) -> None:
        try:
            await publisher.publish("orders", "a", self._uid("one"), message_id=self._uid("one"))
        except Exception:
            self._published.add("one")
        await super().publish(publisher)


class Repeating(Few):
    """It repeats publishes without an id."""

    async def publish(self, publisher: Any) -> None:
        await self._insist(lambda: publisher.publish("orders", "a", self._uid("one")), "one")
        await super().publish(publisher)


class Backwards(Few):
    """Its handler gets the last message of a key first."""

    async def _work(self, database: store.Database) -> None:
        await super()._work(database)
        self.seen = self.seen[-1:] + self.seen[:-1]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("scenario", "verdict"), [(Forgetful, "lost"), (Repeating, "doubled"), (Backwards, "out of order")]
)
async def test_a_scenario_that_breaks_a_promise_is_found(
    dsn: str, scenario: type[Few], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCENARIOS, "few", scenario)
    report = Report()
    async with world(dsn) as made:
        made.proxy.arm()
        if scenario is not Backwards:  # which is wrong without a fault
            await Few(made).run()
            await sweep_first(made, report)
        else:
            report.found.update({what: len(things) for what, things in (await scenario(made).run()).items()})
    assert report.found[verdict] > 0, report


async def sweep_first(made: World, report: Report) -> None:
    """Lose the answer to each of the first messages of open connections."""
    report.messages["few"] = 0
    await Few(made).run()
    for at in range(1, 30):
        await sweep_point(made, at, report)


async def sweep_point(made: World, at: int, report: Report) -> None:
    made.proxy.arm(Fault.UNANSWERED, at)
    found = await SCENARIOS["few"](made).run()
    report.found.update({what: len(things) for what, things in found.items()})


def test_what_is_delivered_again_is_in_order_if_it_ends_in_order() -> None:
    assert out_of_order([("a", 1), ("a", 2), ("b", 1), ("a", 1), ("a", 2)]) == []
    assert out_of_order([("a", 2), ("a", 1), ("a", 2)]) != []
    assert out_of_order([("a", 1), ("a", 2), ("a", 1)]) != []


@pytest.mark.asyncio
async def test_the_proxy_counts_every_message_in_both_directions(dsn: str) -> None:
    proxy = CountingProxy(dsn)
    await proxy.listen()
    database = store.Database(proxy.url(), max_connections=1)
    await database.open()
    await database.fetchval("select 1")
    proxy.arm()
    assert await database.fetchval("select 1") == 1
    assert proxy.count == 7  # Bind, Execute, Sync ─▶ BindComplete, DataRow, CommandComplete, ReadyForQuery
    await database.close()
    await proxy.close()
