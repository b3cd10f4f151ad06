"""Schedules are kept where their stream is, and a server finds them in all databases."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.schedules import ScheduleSpec
from headrace.server.engine import Engine
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _eu(api: Api) -> Engine:
    return api.server.databases.open["eu"].engine


async def _declare(engine: Engine, stream: str, *names: str) -> None:
    """Declare schedules, as an app does that is connected to the database."""
    for name in names:
        await store.declare_schedule(
            engine.app.database, ScheduleSpec(name=name, stream=stream, every="@daily", key="k")
        )


async def _pages(api: Api, forward: bool, limit: int) -> list[tuple[str, str]]:
    """All schedules, page by page in one direction, as (name, stream)."""
    found: list[tuple[str, str]] = []
    place: dict[str, str] = {} if forward else {"before": "~"}
    while True:
        answer = await api.get("/schedules", limit=limit, **place)
        page = [(one["name"], one["stream"]) for one in answer["data"]]
        found = [*found, *page] if forward else [*page, *found]
        following = answer.get("next" if forward else "prev")
        if not page or following is None:
            return found
        place = {"after" if forward else "before": following}


async def test_the_list_has_the_schedules_of_all_databases_each_once(two: Api) -> None:
    await _declare(two.server.engine, "orders", "a", "both", "d")
    await _declare(_eu(two), "visits", "b", "both", "c")
    expected = [
        ("a", "orders"),
        ("b", "visits"),
        ("both", "orders"),
        ("both", "visits"),
        ("c", "visits"),
        ("d", "orders"),
    ]
    for limit in (1, 2, 3, 100):
        assert await _pages(two, True, limit) == expected, limit
        assert await _pages(two, False, limit) == expected, limit
    assert [one["name"] for one in (await two.get("/schedules", after="both"))["data"]] == ["c", "d"]


async def test_a_schedule_is_controlled_in_its_database(two: Api) -> None:
    await _declare(_eu(two), "visits", "nightly")
    paused = await two.post("/schedules/nightly/pause")
    assert (paused["stream"], paused["state"]) == ("visits", "paused")
    assert (await store.schedule(_eu(two).app.database, "nightly")).paused_at is not None
    await two.post("/schedules/visits:nightly/resume")
    assert (await two.post("/schedules/nightly/run"))["requested_at"] is not None
    await two.call("DELETE", "/schedules/nightly")
    two.server.engine.clear_caches()
    assert (await two.refused("GET", "/schedules/nightly", status=404))["code"] == "unknown_schedule"


async def test_a_name_in_two_databases_needs_the_stream(two: Api) -> None:
    await _declare(two.server.engine, "orders", "twice")
    await _declare(_eu(two), "visits", "twice")
    refused = await two.refused("GET", "/schedules/twice", status=409)
    assert "schedule 'twice'" in refused["summary"]
    assert "orders:twice or visits:twice" in refused["summary"]
    for stream in ("orders", "visits"):
        assert (await two.get(f"/schedules/{stream}:twice"))["stream"] == stream
    await two.refused("GET", "/schedules/orders:nightly", status=404)
    await two.stream("other")
    await two.refused("GET", "/schedules/other:twice", status=404)
    # A token for one of the streams needs no stream's name, and learns nothing of the other.
    made = await two.post("/tokens", {"name": "mine", "scopes": ["admin"]}, 201)
    admin = {"authorization": f"Bearer {made['token']}"}
    mine = await two.client.post("/v1/tokens", json={"name": "v", "scopes": ["consume:visits"]}, headers=admin)
    found = await two.client.get("/v1/schedules/twice", headers={"authorization": f"Bearer {mine.json()['token']}"})
    assert (found.status_code, found.json()["stream"]) == (200, "visits")
