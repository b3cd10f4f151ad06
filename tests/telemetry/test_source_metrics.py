"""Metrics of sources that capture tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from headrace.telemetry.instrumentation import Instrumentation
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.telemetry.recorded import Recorded

KNOWN = ("changes", "rate", "behind", "held_back", "state", "alarm")


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(traces=False)


@pytest_asyncio.fixture
async def shop(dsn: str) -> AsyncIterator[Shop]:
    async with Shop.opened(dsn) as shop:
        yield shop


@pytest_asyncio.fixture
async def sources(recorded: Recorded) -> AsyncIterator[dict[str, Any]]:
    """The report of a process on its sources. Tests fill it in."""
    found: dict[str, Any] = {}
    instrumentation = Instrumentation(recorded.telemetry, lambda: {"sources": found, "consumers": {}})
    yield found
    await instrumentation.stop()


def values(recorded: Recorded, source: str) -> dict[str, Any]:
    return dict(_values(recorded, source))


def _values(recorded: Recorded, source: str) -> Iterator[tuple[str, Any]]:
    for name in KNOWN:
        for point in recorded.points(f"headrace.capture.{name}"):
            if point.attributes["headrace.source"] == source:
                yield name, point.attributes["headrace.capture.state"] if name == "state" else point.value


@pytest.mark.asyncio
async def test_each_source_reports_its_state(sources: dict[str, Any], recorded: Recorded) -> None:
    running = {"stream": "orders", "state": "running", "reason": None, "captured": 12, "rate": 2.5}
    sources["shop"] = {**running, "behind": 100, "held_back": 16_000_000, "alarm": None}
    sources["bank"] = {**running, "behind": None, "held_back": None, "alarm": "It holds back 5 GB."}
    sources["gone"] = {"stream": "orders", "state": "stopped", "reason": "The table is gone.", "captured": 3}
    assert values(recorded, "shop") == {
        "changes": 12, "rate": 2.5, "behind": 100, "held_back": 16_000_000, "state": "running", "alarm": 0,
    }  # fmt: skip
    assert values(recorded, "bank") == {"changes": 12, "rate": 2.5, "state": "running", "alarm": 1}
    assert values(recorded, "gone") == {"changes": 3, "state": "stopped"}
    (point, *_) = recorded.points("headrace.capture.rate")
    assert dict(point.attributes) == {
        "messaging.system": "headrace", "messaging.destination.name": "orders", "headrace.source": "shop",
    }  # fmt: skip


@pytest.mark.asyncio
async def test_captured_changes_are_counted_and_the_slot_is_reported(shop: Shop, recorded: Recorded) -> None:
    info = await shop.source()
    async with shop.captured(telemetry=recorded.telemetry) as app:
        await shop.until_running()
        await shop.sql.execute("insert into orders select i, 'paid', 5 from generate_series(1, 7) as i")
        await shop.until(7)

        async def is_reported() -> bool:
            found = values(recorded, "shop")
            return found.get("changes") == 7 and found.get("held_back", 0) > 0

        await eventually(is_reported)
        assert values(recorded, "shop").keys() == set(KNOWN)
        assert values(recorded, "shop")["state"] == "running"
        await app.admin.pause_source(info.name)

        async def is_silent() -> bool:
            return not values(recorded, "shop")

        await eventually(is_silent)
        await app.admin.resume_source(info.name)
        await shop.sql.execute("insert into orders values (8, 'paid', 5)")
        await shop.until(8)

        async def goes_on() -> bool:
            return values(recorded, "shop").get("changes") == 8

        await eventually(goes_on)


@pytest.mark.asyncio
async def test_a_stopped_source_is_reported_as_stopped_and_nothing_else(shop: Shop, recorded: Recorded) -> None:
    await shop.source(tables=("public.nowhere",))
    async with shop.captured(telemetry=recorded.telemetry):
        await shop.until_state("stopped")

        async def is_stopped() -> bool:
            return values(recorded, "shop") == {"changes": 0, "state": "stopped"}

        await eventually(is_stopped)
