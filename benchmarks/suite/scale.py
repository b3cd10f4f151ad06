"""scale: a model predicts the rates on more cores, with more processes, consumers and keys, and with larger payloads."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from benchmarks.harness import Options
from benchmarks.report import Result
from benchmarks.scale.measure import BATCH, Point, costs_of, measured
from benchmarks.scale.model import Costs, Prediction, Workload, fitted, least, predict
from benchmarks.timing import Measured

PAYLOADS = (200, 10_000)
KEYS = 100_000
TARGET = 0.20
"""The error that a prediction may have."""

CORES = (1, 2, 4, 8, 16, 32)

PUBLISH = Workload("publish", 1, 1, 0, KEYS, 200)
CONSUME = Workload("consume", 1, 1, 1, KEYS, 200)


async def scale(options: Options) -> Result:
    """Predict the rates of many workloads from the costs of single calls, and measure those that this machine allows."""
    cores = len(os.sched_getaffinity(0))
    seconds, repeats = options.duration(2, 0.5), options.times(3, 1)
    machine = Machine(cores)
    for _ in range(repeats):
        await machine.measure(options, seconds, _points(cores, options.quick))
    machine.fit()
    points = {_name(workload): machine.compared(workload) for workload in _points(cores, options.quick)}
    errors = [abs(point["error"]) for point in points.values()]
    return Result(
        benchmark="scale",
        about=f"the error of {len(errors)} predicted rates that were measured, without those from which they are predicted",
        measured=Measured(errors, [TARGET]),
        limit_is="the error that a prediction may have",
        unit="of the measured rate",
        details={
            "largest_error": max(errors),
            "points": len(errors),
            "points_within_the_target": sum(error <= TARGET for error in errors),
            "costs": {f"{count} cores": msgspec.to_builtins(costs) for count, costs in machine.costs.items()},
            "curve": {_name(workload): _told(machine.predict(workload)) for workload in _curve()},
        },
        variants=points,
        settings={"seconds": seconds, "batch": BATCH, "cores": cores, "repeats": repeats},
        checks=["no lease was lost"],
    )


class Machine:
    """The measurements on a machine. Of each repeat the least disturbed counts, since other programs only slow it down."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.costs: dict[int, Costs] = {}
        self.points: dict[str, list[Point]] = defaultdict(list)

    async def measure(self, options: Options, seconds: float, points: Iterable[Workload]) -> None:
        """Measure the costs of the calls, and the workloads, once more."""
        for count in {1, self.cores}:
            found = await costs_of(options, count, PAYLOADS, KEYS, seconds)
            self.costs[count] = least(self.costs[count], found) if count in self.costs else found
        for workload in (*_fitted_on(self.cores).values(), *points):
            point = await measured(options, workload, seconds, self.predict(workload).rate)
            self.points[_name(workload)].append(point)

    def fit(self) -> None:
        """Fit the factors of the costs, on all processors."""
        found = self.costs[self.cores]
        for factor, workload in _fitted_on(self.cores).items():
            found = fitted(found, factor, workload, self.best(workload).rate)
        self.costs = {count: msgspec.structs.replace(found, calls=costs.calls) for count, costs in self.costs.items()}

    def best(self, workload: Workload) -> Point:
        """Return the least disturbed measurement of a workload."""
        return max(self.points[_name(workload)], key=lambda point: point.rate)

    def predict(self, workload: Workload) -> Prediction:
        """Predict a rate. On one processor a call wakes up no other one, so it has costs of its own."""
        return predict(self.costs[1 if workload.cores == 1 else self.cores], workload)

    def compared(self, workload: Workload) -> dict[str, Any]:
        """Return what was predicted and measured of a workload."""
        predicted, best = self.predict(workload), self.best(workload)
        return {
            "predicted": predicted.rate,
            "measured": best.rate,
            "error": predicted.rate / best.rate - 1,
            "resource": predicted.resource,
            "samples": [point.rate for point in self.points[_name(workload)]],
            "other_programs": best.others,
        }


def _told(prediction: Prediction) -> dict[str, Any]:
    return {"predicted": prediction.rate, "resource": prediction.resource}


def _name(workload: Workload) -> str:
    counts = {
        "core": workload.cores,
        "process": workload.processes,
        "consumer": workload.consumers,
        "key": workload.keys,
    }
    parts = [f"{count:,} {_plural(noun) if count > 1 else noun}" for noun, count in counts.items() if count]
    return f"{workload.kind}: {', '.join([*parts, f'{workload.payload:,} bytes'])}"


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _fitted_on(cores: int) -> dict[str, Workload]:
    """The workloads to which the factors of the costs are fitted."""
    return {
        "crowding": _changed(PUBLISH, cores=cores, processes=2 * cores),
        "wal": _changed(PUBLISH, cores=cores, processes=2 * cores, payload=PAYLOADS[1]),
        "parking": _changed(CONSUME, cores=cores, processes=4, keys=1000),
    }


def _points(cores: int, quick: bool) -> list[Workload]:
    """The workloads that are measured: each number of processors up to those of the machine, and the other factors on all of
    them."""
    every = [count for count in CORES if count <= cores]
    points = [
        _changed(base, cores=count, processes=processes, **({"consumers": processes} if base.consumers else {}))
        for base in (PUBLISH, CONSUME)
        for count in every
        for processes in sorted({1, 2 * count, 4 * count})
    ]
    full = [_changed(base, cores=cores) for base in (PUBLISH, CONSUME)]
    points += [_changed(base, payload=payload) for base in full for payload in (1_000, 4_000, 30_000)]
    points += [_changed(full[0], processes=2 * cores, payload=payload) for payload in (2_000, 10_000)]
    points += [_changed(full[1], processes=processes) for processes in (2, 8)]
    points += [
        _changed(full[1], processes=processes, consumers=consumers) for processes, consumers in ((2, 20), (4, 100))
    ]
    points += [_changed(full[1], processes=4, keys=keys) for keys in (10_000, 1_000_000)]
    known = {_name(workload) for workload in _fitted_on(cores).values()}
    known |= {_name(_changed(base, cores=count)) for base in (PUBLISH, CONSUME) for count in (1, cores)}
    left = {_name(point): point for point in points if _name(point) not in known}
    return list(left.values())[:: 7 if quick else 1]


def _curve() -> Iterable[Workload]:
    """The workloads that are predicted, whatever the machine."""
    for count in CORES:
        yield _changed(PUBLISH, cores=count, processes=2 * count)
        yield _changed(CONSUME, cores=count, processes=2 * count)
        yield _changed(CONSUME, cores=count, processes=2 * count, consumers=2 * count)
        yield _changed(CONSUME, cores=count, processes=min(64, 2 * count), consumers=1000)
    for keys in (1_000, 10_000, 10_000_000):
        yield _changed(CONSUME, cores=CORES[-1], processes=2 * CORES[-1], consumers=8, keys=keys)
    for payload in (1_000, 10_000, 100_000):
        yield _changed(PUBLISH, cores=CORES[-1], processes=2 * CORES[-1], payload=payload)


def _changed(workload: Workload, **changes: Any) -> Workload:
    return msgspec.structs.replace(workload, **changes)
