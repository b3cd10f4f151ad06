"""The model of `scale`: more of a resource never makes it slower, and no rate exceeds what one resource allows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scale.model import CORES, FLUSH, LOCK, PROCESSES, Call, Costs, Workload, fitted, least, predict

seconds = st.floats(1e-6, 1e-2)
calls = st.builds(Call, postgres=seconds, client=seconds, wait=st.floats(0, 1e-2))
pairs = st.tuples(calls, calls).map(lambda pair: (pair[0], added(*pair)))
costs = st.builds(
    Costs,
    batch=st.just(100),
    payloads=st.just((200, 10_000)),
    calls=st.fixed_dictionaries({"publish": pairs, "lease": pairs, "settle": pairs}),
    crowding=st.floats(0, 1),
    wal=st.floats(0, 1e-8),
    parking=st.floats(1, 5),
)
workloads = st.builds(
    Workload,
    kind=st.sampled_from(["publish", "consume"]),
    cores=st.sampled_from([1, 2, 4, 8, 16, 32]),
    processes=st.integers(1, 64),
    consumers=st.integers(1, 1000),
    keys=st.integers(1_000, 10_000_000),
    payload=st.integers(200, 100_000),
)
ROUNDING = 1.005


def added(small: Call, more: Call) -> Call:
    """The costs with larger payloads are higher."""
    return Call(small.postgres + more.postgres, small.client + more.client, small.wait + more.wait)


def rate(known: Costs, workload: Workload, **changes: object) -> float:
    return predict(known, msgspec.structs.replace(workload, **changes)).rate


@given(costs, workloads)
def test_more_cores_are_not_slower(known: Costs, workload: Workload) -> None:
    uncrowded = msgspec.structs.replace(known, crowding=0.0)
    assert rate(uncrowded, workload) <= rate(uncrowded, workload, cores=workload.cores * 2) * ROUNDING


@given(costs, workloads)
def test_larger_payloads_are_not_faster(known: Costs, workload: Workload) -> None:
    assert rate(known, workload, payload=workload.payload * 2) <= rate(known, workload) * ROUNDING


@given(costs, workloads)
def test_more_keys_are_not_slower(known: Costs, workload: Workload) -> None:
    assert rate(known, workload) <= rate(known, workload, keys=workload.keys * 10) * ROUNDING


@given(costs, workloads)
def test_no_rate_exceeds_what_the_processors_allow(known: Costs, workload: Workload) -> None:
    names = ["publish"] if workload.kind == "publish" else ["lease", "settle"]
    each = [known.call(name, workload.payload) for name in names]
    fixed = sum(
        call.client + call.postgres / (2 if name == "lease" else 1) for name, call in zip(names, each, strict=True)
    )
    assert rate(known, workload) <= known.batch * workload.cores / fixed * ROUNDING
    busy = predict(known, workload).utilization[CORES]
    assert busy <= workload.cores * ROUNDING


@given(costs, workloads)
def test_no_lock_is_held_for_more_than_all_of_the_time(known: Costs, workload: Workload) -> None:
    assert 0 <= predict(known, workload).utilization[LOCK] <= ROUNDING


@given(costs, workloads.filter(lambda workload: workload.kind == "publish"))
def test_no_rate_exceeds_what_the_wal_takes(known: Costs, workload: Workload) -> None:
    call = known.call("publish", workload.payload)
    each = min(known.wal * known.batch * workload.payload, call.wait + call.postgres)
    assert rate(known, workload) * each <= known.batch * ROUNDING


@given(costs, workloads)
def test_no_rate_exceeds_that_of_processes_that_never_wait_for_each_other(known: Costs, workload: Workload) -> None:
    alone = rate(known, workload, processes=1, consumers=1, cores=1, keys=10_000_000)
    free = msgspec.structs.replace(known, crowding=0.0, wal=0.0)
    most = rate(free, workload, processes=1, consumers=1, cores=1, keys=10_000_000)
    assert alone <= most * ROUNDING
    assert rate(known, workload) <= most * workload.processes * ROUNDING


PLAIN = Call(postgres=300e-6, client=60e-6, wait=100e-6)
KNOWN = Costs(100, (200, 10_000), dict.fromkeys(("publish", "lease", "settle"), (PLAIN, PLAIN)), wal=1e-10)


@pytest.mark.parametrize(
    ("workload", "resource"),
    [
        (Workload("publish", 32, 1, 0, 10_000, 200), PROCESSES),
        (Workload("publish", 1, 16, 0, 10_000, 200), CORES),
        (Workload("publish", 32, 64, 0, 10_000, 100_000), FLUSH),
        (Workload("consume", 32, 8, 1, 10_000_000, 200), LOCK),
        (Workload("consume", 2, 8, 8, 10_000_000, 200), CORES),
    ],
)
def test_a_prediction_names_what_ends_the_rate(workload: Workload, resource: str) -> None:
    assert predict(KNOWN, workload).resource == resource


@pytest.mark.parametrize("cores", [1, 2, 32])
def test_one_process_alone_takes_the_time_of_its_calls(cores: int) -> None:
    crowded = msgspec.structs.replace(KNOWN, crowding=0.5)
    assert rate(crowded, Workload("consume", cores, 1, 1, 10_000, 200)) == pytest.approx(100 / 920e-6, rel=0.01)


@given(costs, st.sampled_from([("crowding", 0.5), ("wal", 1e-8), ("parking", 3.0)]))
def test_a_factor_is_found_again_from_a_rate_that_it_predicts(known: Costs, factor: tuple[str, float]) -> None:
    name, value = factor
    workload = Workload("consume" if name == "parking" else "publish", 2, 8, int(name == "parking"), 1_000, 10_000)
    right = msgspec.structs.replace(known, **{"crowding": 0.1, "wal": 1e-9, "parking": 1.5, name: value})
    wanted = predict(right, workload).rate
    found = predict(fitted(right, name, workload, wanted), workload).rate
    assert found == pytest.approx(wanted, rel=0.02)


def test_the_least_disturbed_costs_count() -> None:
    slow = msgspec.structs.replace(KNOWN, calls={name: (Call(1, 1, 1), PLAIN) for name in KNOWN.calls})
    assert least(slow, KNOWN) == least(KNOWN, slow) == KNOWN
