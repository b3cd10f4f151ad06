"""governor: concurrency that scales itself, compared with the best fixed setting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

import anyio
import msgspec

from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.publishing import Publisher
from benchmarks.report import Result, figures
from benchmarks.suite.filling import fill
from benchmarks.suite.governing import Handler, Run, Watched, computing, run, waiting
from benchmarks.timing import Measured, percentile
from headrace import App

KEYS = Keys(1000)
COMFORTABLE = 20


class Workload(msgspec.Struct, frozen=True):
    """A handler, the fixed settings that are tried, and the governor's range."""

    handler: Callable[[Watched], Handler]
    fixed: tuple[int, ...]
    governed: tuple[int, int]


BACKLOGS = {
    "waits_10_ms": Workload(waiting(0.010), (8, 16, 32, 64), (1, 64)),
    "computes": Workload(computing(5_000), (1, 2, 4, 8), (1, 64)),
    "downstream_of_20": Workload(waiting(0.020, COMFORTABLE), (10, 16, 20, 24, 32), (1, 128)),
}
STEADY = waiting(0.010)
STEADY_FIXED = (8, 64)
RATES = (400, 800, 1600, 800, 400, 200)
"""Messages published per second, one phase after the other."""


class Plan(msgspec.Struct, frozen=True):
    """Durations of the phases, in seconds."""

    fixed: float
    governed: float
    found: float  # from here on the governor should have found its level
    phase: float
    messages: int


async def governor(options: Options) -> Result:
    """Scale concurrency for handlers that wait, compute or share a downstream of 20, and for a changing load."""
    plan = Plan(2.5, 16.0, 10.0, 4.0, options.count(120_000, 6_000))
    if options.quick:
        plan = Plan(0.6, 1.5, 0.5, 0.5, plan.messages)
    governed: dict[str, Measured] = {name: Measured() for name in (*BACKLOGS, "load_doubles_and_halves")}
    details: dict[str, dict[str, Any]] = {}
    for _ in range(options.times(1, 1)):
        async with bench(options) as place:
            await fill(place, KEYS, plan.messages)
            for name, workload in BACKLOGS.items():
                details[name] = await _backlog(place, workload, plan, governed[name])
        async with bench(options) as place:
            details["load_doubles_and_halves"] = await _load(place, plan, governed["load_doubles_and_halves"])
    first, *others = governed
    return Result(
        benchmark="governor",
        about=f"concurrency scales itself: {first}; the others as variants",
        measured=governed[first],
        limit_is="the best of the fixed settings, measured before and after",
        variants={name: {**figures(governed[name]), **details[name]} for name in others},
        details=details[first],
        settings={
            "messages": plan.messages,
            "keys": KEYS.count,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "governed_seconds": plan.governed,
            "counted_from_second": plan.found,
            "handler_of_the_downstream": f"20 ms for up to {COMFORTABLE} at a time, with n more as the square of n/{COMFORTABLE}",
            "load": f"{', '.join(map(str, RATES))} a second, {plan.phase:g} s each",
        },
        checks=["no message came twice to a consumer"],
    )


# --- a backlog


async def _backlog(place: Bench, workload: Workload, plan: Plan, measured: Measured) -> dict[str, Any]:
    fixed = {setting: await _fixed(place, workload, setting, plan) for setting in workload.fixed}
    best = max(fixed, key=lambda setting: fixed[setting])
    search: list[tuple[int, float]] = []

    async def watch(_: App, seen: Run) -> None:
        await anyio.sleep(plan.found)
        search.append(seen.watched.above(COMFORTABLE))
        await anyio.sleep(plan.governed - plan.found)

    seen = await run(place, workload.handler, plan.messages, workload.governed, watch, {})
    again = await _fixed(place, workload, best, plan)
    measured.samples.append(seen.rate(plan.found))
    measured.limit_samples.append(fmean((fixed[best], again)))
    found = {
        "fixed": {str(setting): rate for setting, rate in fixed.items()},
        "best_fixed": best,
        "actors": seen.usual(plan.found),
        "nine_tenths_after_seconds": seen.reached(0.9 * measured.limit_samples[-1]),
    }
    if workload.handler is BACKLOGS["downstream_of_20"].handler:
        most, share = seen.watched.above(COMFORTABLE)
        found |= {"most_in_flight": most, "share_of_time_above_20": share}
        found |= {"most_in_flight_in_search": search[0][0], "share_of_time_above_20_in_search": search[0][1]}
    return found


async def _fixed(place: Bench, workload: Workload, setting: int, plan: Plan) -> float:
    async def last(_: App, __: Run) -> None:
        await anyio.sleep(plan.fixed)

    return (await run(place, workload.handler, plan.messages, setting, last, {})).rate(plan.fixed / 4)


# --- a load


async def _load(place: Bench, plan: Plan, measured: Measured) -> dict[str, Any]:
    """The load, with fixed settings and governed. The figure is the share of it that is handled in time."""
    total = int(sum(RATES) * plan.phase) + 1
    runs = {}
    for setting in (*STEADY_FIXED, (1, 64)):
        await place.database.fetch(f'truncate headrace_streams."{STREAM}"')
        runs[setting] = await run(
            place, STEADY, total * 4, setting, partial(_publish, plan=plan), {"deliver_policy": "new"}
        )
    whole = plan.phase * len(RATES)
    rates = {setting: runs[setting].rate(0, whole) for setting in STEADY_FIXED}
    # Of those that are done with the load in the end, the one that was not behind in between.
    best = min((one for one in rates if rates[one] >= 0.99 * max(rates.values())), key=lambda one: _late(runs[one]))
    seen = runs[1, 64]
    measured.samples.append(seen.rate(0, whole))
    measured.limit_samples.append(rates[best])
    return {
        "best_fixed": best,
        "least_of_a_phase": min(
            _phase(seen, place_, plan) / (_phase(runs[best], place_, plan) or 1.0) for place_ in range(len(RATES))
        ),
        "actors": {str(RATES[each]): seen.usual((each + 0.5) * plan.phase) for each in range(3)},
        "p95_ms_of_the_best_fixed": _late(runs[best]),
        "p95_ms_governed": _late(seen),
    }


async def _publish(app: App, _: Run, plan: Plan) -> None:
    publisher = Publisher(app, STREAM, KEYS)
    for rate in RATES:
        await publisher.at_pace(rate, plan.phase, max(1, rate // 100))
    await app.idle()


def _phase(seen: Run, phase: int, plan: Plan) -> float:
    return seen.rate(phase * plan.phase, (phase + 1) * plan.phase)


def _late(seen: Run) -> float:
    return percentile(sorted(late for _, late in seen.watched.late), 0.95) * 1000
