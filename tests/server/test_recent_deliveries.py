"""The recent deliveries of webhooks: accepted and refused deliveries, without their contents, and with few writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace import App, store
from headrace.model.errors import StoreUnavailable, UnknownSource
from headrace.server.background import recent_events
from headrace.server.background.recent_events import OWNERS, PER_OWNER, Gathered, RecentEvents
from headrace.store import DeliveryToRecord
from tests.runtime.running import eventually
from tests.server.calling import Api
from tests.server.delivering import JSON, deliver, source

pytestmark = pytest.mark.asyncio


async def _deliveries(api: Api, count: int) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = (await api.get("/sources/hook/deliveries"))["data"]
        return found if len(found) >= count else None

    found: list[dict[str, Any]] = await eventually(look)
    return found


async def test_accepted_repeated_and_refused_deliveries_are_recorded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "INTERVAL", 0.01)
    await api.stream()
    await source(api, max_body=100)
    secret = b'{"card": "4111"}'
    for body in (secret, secret, b"x" * 101):
        await deliver(api, body, headers={**JSON, "webhook-id": "one"})
    refused, repeated, accepted = await _deliveries(api, 3)
    assert (accepted["accepted"], accepted["status"], accepted["reason"], accepted["bytes"]) == (True, 200, None, 16)
    assert accepted["key"].startswith("hook.")
    assert accepted["seq"] == 1
    assert (repeated["accepted"], repeated["reason"]) == (True, "It was published before.")
    assert (refused["accepted"], refused["status"], refused["key"], refused["bytes"]) == (False, 413, None, 101)
    assert "100 bytes" in refused["reason"]
    assert "4111" not in str([refused, repeated, accepted])
    assert len((await api.get("/sources/hook/deliveries", limit=1))["data"]) == 1


async def test_an_invalid_signature_is_recorded_without_any_secret(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "INTERVAL", 0.01)
    await api.stream()
    await source(api, signature="github", secrets=["hush"])
    await deliver(api, b"{}", headers={"x-hub-signature-256": "sha256=00"})
    [refused] = await _deliveries(api, 1)
    assert (refused["status"], refused["accepted"]) == (401, False)
    assert "hush" not in str(refused)


async def test_a_source_that_captures_tables_has_no_deliveries(api: Api) -> None:
    assert (await api.refused("GET", "/sources/nope/deliveries", status=404))["code"] == "unknown_source"


def _delivery(source: UUID, number: int) -> DeliveryToRecord:
    return DeliveryToRecord(source=source, at=datetime.now(UTC), status=401, reason=None, bytes=number)


async def test_a_flood_costs_one_write_and_bounded_memory(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[list[DeliveryToRecord]] = []

    async def record(_: Any, deliveries: list[DeliveryToRecord]) -> None:
        writes.append(deliveries)

    monkeypatch.setattr(store, "record_deliveries", record)
    events, app, hook = RecentEvents(), App(dsn), uuid4()
    app.attach(events)

    async def look() -> bool:
        return bool(writes)

    async with app.running():
        for number in range(10_000):
            events.delivered(_delivery(hook, number))
        await eventually(look)
    assert [one.bytes for write in writes for one in write] == list(range(10_000 - PER_OWNER, 10_000))
    assert len(writes) == 1
    gathered: Gathered[int] = Gathered()
    for number in range(2 * OWNERS):
        gathered.add(number, number)
    assert len(gathered.take()) == OWNERS
    assert gathered.take() == []


@pytest.mark.parametrize(
    "failure", [StoreUnavailable("away"), UnknownSource("deleted just now"), RuntimeError("a bug")]
)
async def test_events_are_dropped_and_a_server_goes_on_whatever_fails_while_they_are_recorded(
    dsn: str, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    written: list[int] = []

    async def record(_: Any, deliveries: list[DeliveryToRecord]) -> None:
        written.append(len(deliveries))
        if len(written) == 1:
            raise failure

    monkeypatch.setattr(store, "record_deliveries", record)
    monkeypatch.setattr(recent_events, "INTERVAL", 0.0)
    events, app, hook = RecentEvents(), App(dsn), uuid4()
    app.attach(events)
    async with app.running():
        events.delivered(_delivery(hook, 1))

        async def look() -> bool:
            return len(written) == 1

        await eventually(look)
        events.delivered(_delivery(hook, 2))
        events.delivered(_delivery(hook, 3))
    assert written == [1, 2]
