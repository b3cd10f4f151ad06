"""The model: the rate of processes that each make one call after the other.

The processes are the customers of a closed network of queues. A process visits the processors (its own work and that of
its Postgres backend), the lock of a consumer, and the flush of the WAL. Its time at a station grows with the number of
others that it finds there. This is approximate mean value analysis after Bard and Schweitzer, with several processors
as Seidmann has them: a faster single one, and a delay. The rate is therefore at most that of each station alone.

Everything here is computed. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Kind = Literal["publish", "consume"]

CORES = "processors"
LOCK = "a consumer's lock"
FLUSH = "the WAL"
PROCESSES = "processes"

_ROUNDS = 300
_CLOSE = 1e-5


class Call(msgspec.Struct, frozen=True):
    """The cost of a call with nothing beside it: processor time in Postgres and in the client, and the time in which
    neither works, which is mostly the flush."""

    postgres: float
    client: float
    wait: float

    def between(self, other: Call, share: float) -> Call:
        """Return the cost at a share of the way to another one, also beyond it."""
        parts = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return Call(*(max(first + (last - first) * share, 0.0) for first, last in parts))


class Costs(msgspec.Struct, frozen=True):
    """The measured costs of the calls of a batch, from which rates are predicted.

    Attributes:
        batch: messages of a batch.
        payloads: the two sizes of payloads with which they were measured, in bytes.
        calls: the costs of `publish`, `lease` and `settle`, with the smaller and with the larger payload.
        crowding: the share by which processor time grows if all processors are busy and one process alone keeps none
            busy, since they share caches and units.
        wal: seconds per byte for which the WAL is written by one process at a time.
        parking: the cost of a lease call that passes over messages whose keys are in flight elsewhere, in plain ones.
    """

    batch: int
    payloads: tuple[int, int]
    calls: Mapping[str, tuple[Call, Call]]
    crowding: float = 0.0
    wal: float = 0.0
    parking: float = 1.0

    def call(self, kind: str, payload: int) -> Call:
        """Return the cost of a call with payloads of a size."""
        small, large = self.payloads
        first, last = self.calls[kind]
        return first.between(last, (payload - small) / (large - small))


class Workload(msgspec.Struct, frozen=True):
    """The work that is done at the same time.

    Attributes:
        kind: whether the processes publish, or lease and ack. Of the latter each message counts once for each consumer.
        cores: the processors that Postgres and the processes have together.
        processes: their number. Those that consume are divided among the consumers.
        consumers: the consumers of the stream. 0 if the processes publish.
        keys: the number of keys.
        payload: bytes of a payload.
    """

    kind: Kind
    cores: int
    processes: int
    consumers: int
    keys: int
    payload: int


class Prediction(msgspec.Struct, frozen=True):
    """A predicted rate.

    Attributes:
        rate: messages per second.
        resource: what ends it: the rate grows most if there is twice as much of it, or if it takes half the time.
        utilization: how many processors are busy, and the share of time in which a consumer's lock is held.
    """

    rate: float
    resource: str
    utilization: dict[str, float]


class _Demand(msgspec.Struct, frozen=True):
    """The time at each station of one cycle, which handles `messages`. `sharing` processes share a consumer."""

    processor: float
    lock: float
    flush: float
    wal: float
    messages: float
    processes: float
    cores: float
    sharing: float
    crowding: float


def predict(costs: Costs, workload: Workload) -> Prediction:
    """Predict the rate of a workload."""
    demand = _demand(costs, workload)
    cycles, held = _solve(demand)
    changed = {
        CORES: msgspec.structs.replace(demand, cores=demand.cores * 2),
        LOCK: msgspec.structs.replace(demand, lock=demand.lock / 2),
        FLUSH: msgspec.structs.replace(demand, flush=demand.flush / 2, wal=demand.wal / 2),
        PROCESSES: msgspec.structs.replace(
            demand, processes=demand.processes * 2, sharing=demand.sharing * (2 if demand.lock else 1)
        ),
    }
    gains = {resource: _solve(other)[0] for resource, other in changed.items()}
    busy = {CORES: cycles * demand.processor, LOCK: held}
    return Prediction(cycles * demand.messages, max(gains, key=lambda resource: gains[resource]), busy)


def _demand(costs: Costs, workload: Workload) -> _Demand:
    common = {"processes": float(workload.processes), "cores": float(workload.cores), "crowding": costs.crowding}
    if workload.kind == "publish":
        call = costs.call("publish", workload.payload)
        # The work that one process at a time does is a part of the work and of the wait of a process alone.
        wal = min(costs.wal * costs.batch * workload.payload, call.postgres + call.wait)
        return _Demand(call.postgres + call.client, 0.0, call.wait, wal, costs.batch, sharing=1.0, **common)
    lease, settle = costs.call("lease", workload.payload), costs.call("settle", workload.payload)
    messages, parking = _leased(costs, workload)
    # A call that brings fewer messages costs less, but not in proportion: about half of it is fixed.
    held = lease.postgres * ((1 + messages / costs.batch) / 2 + parking * (costs.parking - 1))
    processor = held + lease.client + settle.postgres + settle.client
    sharing = max(1.0, workload.processes / workload.consumers)
    return _Demand(processor, held, lease.wait + settle.wait, 0.0, messages, sharing=sharing, **common)


def _leased(costs: Costs, workload: Workload) -> tuple[float, float]:
    """The messages that a lease call brings, and the share of calls that are slower since messages were passed over.

    The other processes of the consumer have a batch each in flight. A call ends before the first message whose key is
    among those, unless that is in the first half of the batch: then it passes over such messages.
    """
    others = max(0.0, workload.processes / workload.consumers - 1)
    busy = min(0.9, others * costs.batch / workload.keys)
    if not busy:
        return costs.batch, 0.0
    half = costs.batch // 2
    passes = 1 - (1 - busy) ** half
    # A message that was passed over waits for another process, and calls are slower until it has been leased.
    slower = 1 - (1 - passes) ** (2 + others)
    ends = sum((place - 1) * (1 - busy) ** (place - 1) * busy for place in range(half + 1, costs.batch + 1))
    return max(1.0, ends + (1 - busy) ** costs.batch * costs.batch + passes * costs.batch * (1 - busy)), slower


def _solve(demand: _Demand) -> tuple[float, float]:
    """Return the cycles per second of all processes, and the share of time in which a consumer's lock is held."""
    processes, cores, sharing = demand.processes, demand.cores, demand.sharing
    # The costs were measured with one process. What its client and its backend do to each other is in them.
    alone = demand.processor / (demand.processor + demand.flush) / cores
    waiting = at_lock = at_wal = rate = found = held = 0.0
    for _ in range(_ROUNDS):
        busy = min(1.0, rate * demand.processor / cores)
        crowded = 1 + demand.crowding * max(0.0, busy - alone) if cores > 1 else 1.0
        share = demand.processor * crowded / cores
        queue = share * (1 + (processes - 1) / processes * waiting)
        processor = queue + share * (cores - 1)
        # The holder of the lock works, and waits for a processor like all others.
        hold = demand.lock * processor / demand.processor
        lock = hold * (sharing - 1) / sharing * at_lock
        flush = demand.flush * (1 + (processes - 1) / processes * min(1.0, rate * demand.flush) / 2)
        wal = demand.wal * (processes - 1) / processes * at_wal
        found = processes / (processor + lock + flush + wal)
        per_consumer = found * sharing / processes
        held = per_consumer * hold
        waiting, at_lock = (waiting + found * queue) / 2, (at_lock + per_consumer * (lock + hold)) / 2
        at_wal = (at_wal + found * (wal + demand.wal)) / 2
        if abs(found - rate) <= _CLOSE * found:
            break
        rate = (rate + found) / 2
    return found, held


_RANGES = {"crowding": (0.0, 2.0), "wal": (0.0, 1e-7), "parking": (1.0, 20.0)}
"""The values that the factors of costs may have."""


def fitted(costs: Costs, factor: str, workload: Workload, rate: float) -> Costs:
    """Return costs with the value of a factor at which the prediction for a workload comes closest to a rate."""
    low, high = _RANGES[factor]
    for _ in range(40):
        middle = (low + high) / 2
        slower = predict(msgspec.structs.replace(costs, **{factor: middle}), workload).rate < rate
        low, high = (low, middle) if slower else (middle, high)
    return msgspec.structs.replace(costs, **{factor: low})


def least(first: Costs, second: Costs) -> Costs:
    """Return the costs of the calls that took less time. Other programs only make calls slower."""
    calls: dict[str, tuple[Call, Call]] = {}
    for name, (small, large) in first.calls.items():
        other_small, other_large = second.calls[name]
        calls[name] = (min(small, other_small, key=_total), min(large, other_large, key=_total))
    return msgspec.structs.replace(first, calls=calls)


def _total(call: Call) -> float:
    return call.postgres + call.client + call.wait
