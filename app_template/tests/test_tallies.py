"""Tests of the Spark handler, on a small session of its own. Skipped where headrace[spark] is not installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from headrace import App
from headrace.testing import Harness

from my_service import tallies
from my_service.settings import Settings

pytest.importorskip("pyspark")
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small session for tests: one core, little memory, and the quick compiler."""
    monkeypatch.setenv("HEADRACE_SPARK_MASTER", "local[1]")
    quick = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
    monkeypatch.setenv("HEADRACE_SPARK_CONF", f"spark.driver.memory=512m,{quick}")


async def test_what_is_ordered_is_counted(harness: Callable[..., Harness]) -> None:
    app = App(streams=["orders"])
    tallies.declare(app, Settings())
    async with harness(app) as service:
        orders = [["a hat"], ["a hat", "a coat"], []]
        await service.publish_many(
            "orders", [(f"orders.us.{n}", {"id": n, "items": it}) for n, it in enumerate(orders)]
        )
        await service.publish("orders", "orders.us.9", {"id": 9, "items": "a hat"})  # does not decode
        await service.publish("orders", "orders.eu.1", {"id": 1, "items": ["a scarf"]})
        await service.drain(within=120)
        counted: Counter[str] = Counter()
        for message in await service.published("tallies", "tallies.us"):
            counted[message.data["item"]] += message.data["count"]
        assert counted == {"a hat": 2, "a coat": 1}
        (dead,) = await service.dead_letters("tally")
        assert dead.key == "orders.us.9"
