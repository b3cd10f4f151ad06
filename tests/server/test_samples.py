"""Samples for charts over HTTP."""

from __future__ import annotations

import pytest

from headrace.runtime.maintenance.sampler import Sampler
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio


async def test_a_consumer_has_a_chart(api: Api) -> None:
    await api.stream()
    made = await api.consumer()
    await api.publish(("a", 1), ("b", 2))
    await Sampler(api.server.app.database).tick()
    found = (await api.get("/samples", kind="consumer", stream="orders", consumer=made["id"], points=10))["data"]
    assert len(found["at"]) == len(found["series"]["lag"]) <= 11
    assert [level for level in found["series"]["lag"] if level is not None] == [2.0]
    assert (await api.get("/samples"))["data"]["series"].keys() == found["series"].keys()


async def test_a_chart_needs_the_scope_of_its_stream(api: Api) -> None:
    await api.stream("orders")
    await api.stream("bills")
    root = (await api.post("/tokens", {"name": "root", "scopes": ["admin"]}, 201))["token"]
    api.client.headers["authorization"] = f"Bearer {root}"
    token = (await api.post("/tokens", {"name": "some", "scopes": ["consume:orders"]}, 201))["token"]
    api.client.headers["authorization"] = f"Bearer {token}"
    await api.get("/samples", kind="stream", stream="orders")
    await api.refused("GET", "/samples", status=403, kind="stream", stream="bills")
    await api.refused("GET", "/samples", status=403, kind="stream", stream="nothing")
    await api.refused("GET", "/samples", status=403)


async def test_an_impossible_chart_is_refused_in_words(api: Api) -> None:
    await api.stream()
    await api.refused("GET", "/samples", status=422, kind="consumer", stream="orders")
    await api.refused("GET", "/samples", status=422, since="2026-03-02T00:00:00Z", until="2026-03-01T00:00:00Z")
    await api.refused("GET", "/samples", status=404, kind="stream", stream="nothing")
