"""The promises of the README, checked in a run with every kind of fault. `judges` describes the checks
and why they are sound.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.torture.promises.faults import FAULTS
from tests.torture.promises.routes import PGBOUNCER
from tests.torture.promises.run import Report, run
from tests.torture.promises.site import Load

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(
        PGBOUNCER is None, reason="pgbouncer is not installed: failovers behind a pooler can't be tried"
    ),
]

PROGRESS = 5.0
"""Seconds after a fault's end within which every consumer must settle again."""

SHORT = Load(messages=3_000, rate=250, workers=2, servers=1, clients=3, services=20, ack_wait=1.0)
LONG = Load(messages=1_000_000, rate=850, workers=3, servers=2, clients=24, services=60)


async def test_every_promise_holds_through_one_fault_of_each_kind(tmp_path: Path) -> None:
    report = await run(tmp_path, SHORT, faults=len(FAULTS), seed=random.randrange(2**32), pause=(0.1, 0.3), patience=30)
    judged(report)


@pytest.mark.torture
async def test_every_promise_holds_through_a_million_messages_and_two_hundred_faults(tmp_path: Path) -> None:
    report = await run(tmp_path, LONG, faults=210, seed=random.randrange(2**32), pause=(0.5, 1.5), patience=30)
    judged(report)
    assert report.counts["messages"] >= 1_000_000
    assert report.worst() <= PROGRESS, f"after a fault it took {report.worst():.1f} s to get on; see the table"


def judged(report: Report) -> None:
    print(report)
    assert {fault.kind for fault, _ in report.faults} == {fault.__name__ for fault in FAULTS}
    assert report.counts["failovers"] > 0
    assert report.broken() == {}
