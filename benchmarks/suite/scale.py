"""scale: a model predicts the rates on more cores, with more processes, consumers and keys, and with larger payloads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from statistics import median
from typing import Any

import msgspec

from benchmarks.harness import Options
from benchmarks.report import Result
from benchmarks.scale.measure import BATCH, Point, costs_of, fitted, measured
from benchmarks.scale.model import Costs, Prediction, Workload, predict
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
    rounds = [await _round(options, cores, seconds) for _ in range(repeats)]
    points = {name: _figures([one.points[name] for one in rounds]) for name in rounds[0].points}
    last = rounds[-1]
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
            "costs": {"one core": msgspec.to_builtins(last.single), "several": msgspec.to_builtins(last.several)},
            "curve": {_name(workload): _told(last.predict(workload)) for workload in _curve()},
        },
        variants=points,
        settings={"seconds": seconds, "batch": BATCH, "cores": cores, "repeats": repeats},
        checks=["no lease was lost"],
    )


class Compared(msgspec.Struct, frozen=True):
    """A point that was predicted and measured in the same round."""

    predicted: Prediction
    measured: Point


class Round(msgspec.Struct, frozen=True):
    """The costs of a round, and its points by name. Each round has costs of its own, in case that the machine is slower then.

    Attributes:
        single: the costs where Postgres and the processes share one processor. A call wakes up no other one there.
        several: the costs on several processors.
    """

    single: Costs
    several: Costs
    points: dict[str, Compared] = {}

    def predict(self, workload: Workload) -> Prediction:
        """Predict the rate of a workload."""
        return predict(self.single if workload.cores == 1 else self.several, workload)


async def _round(options: Options, cores: int, seconds: float) -> Round:
    several = await fitted(options, await costs_of(options, cores, PAYLOADS, KEYS, seconds), _fitted_on(cores), seconds)
    single = several
    if cores > 1:
        calls = (await costs_of(options, 1, PAYLOADS, KEYS, seconds)).calls
        single = msgspec.structs.replace(several, calls=calls)
    found = Round(single, several)
    for workload in _points(cores, options.quick):
        predicted = found.predict(workload)
        found.points[_name(workload)] = Compared(predicted, await measured(options, workload, seconds, predicted.rate))
    return found


def _figures(rounds: list[Compared]) -> dict[str, Any]:
    """The medians of a point, and the largest share of the processors that other programs used meanwhile."""
    return {
        "predicted": median(one.predicted.rate for one in rounds),
        "measured": median(one.measured.rate for one in rounds),
        "error": median(one.predicted.rate / one.measured.rate - 1 for one in rounds),
        "resource": rounds[-1].predicted.resource,
        "other_programs": max(one.measured.others for one in rounds),
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
    fitted = {_name(workload) for workload in _fitted_on(cores).values()}
    left = {_name(point): point for point in points if _name(point) not in fitted}
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
