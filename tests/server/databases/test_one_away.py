"""An unavailable database makes its own streams unavailable, and nothing else."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from headrace import store
from headrace.admin import Admin
from headrace.server.options import Options
from tests.server.calling import Api
from tests.server.databases.conftest import OPTIONS, opened, serving_here
from tests.support import servers
from tests.support.silence import proxied

pytestmark = pytest.mark.asyncio


async def _listed(home_dsn: str) -> None:
    """Add `eu` as the command line does, with a stream `visits`, while no server runs."""
    async with servers.opened(home_dsn) as home:
        await Admin(home).add_database("eu", "env:HR_TEST_EU", unchecked=True)
        await store.place_name(home, "stream", "visits", "eu")


async def _is_away(api: Api) -> None:
    """`eu` is unavailable, and everything else continues."""
    for method, path, body in (
        ("POST", "/streams/visits/messages", {"messages": [{"key": "a", "data": 1}]}),
        ("POST", "/streams/visits/consumers/ship/receive", {}),
        ("GET", "/streams/visits", None),
        ("DELETE", "/streams/visits", None),
        ("POST", "/streams", {"name": "new", "database": "eu"}),
        ("POST", "/http_pull_consumers/unknown/receive", {}),
        ("GET", "/schedules/unknown", None),
    ):
        refused = await api.refused(method, path, body, status=503)
        assert "'eu'" in refused["summary"]
        assert "127.0.0.1" not in refused["summary"]
    await api.publish(("a", 1), stream="orders")
    listed = await api.get("/streams")
    assert ([one["name"] for one in listed["data"]], listed["unavailable"]) == (["orders"], ["eu"])
    for path in ("/schedules", "/sources"):
        assert (await api.get(path))["unavailable"] == ["eu"], path
    assert (await api.get("/live/snapshot"))["data"]["unavailable"] == ["eu"]
    answer = await api.client.get("/ready")
    assert (answer.status_code, answer.json()["databases"][0]["ready"]) == (200, False)


async def test_a_server_starts_without_a_database_and_goes_on_without_it(
    dsn: str, eu_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _listed(dsn)
    async with proxied(eu_dsn) as proxy:
        monkeypatch.setenv("HR_TEST_EU", proxy.url())
        proxy.refuse()
        async with serving_here(dsn) as api:
            await api.stream("orders")
            assert await (await api.server.databases.entry("eu")).settled() is None
            await _is_away(api)

            await proxy.listen()
            await opened(api, "eu")
            assert (await api.stream("visits", database="eu"))["database"] == "eu"
            await api.publish(("a", 1), stream="visits")
            assert "unavailable" not in await api.get("/streams")

            proxy.refuse()  # it breaks down
            refused = await api.refused("GET", "/streams/visits", status=503)
            assert refused["summary"].startswith("In the database 'eu': ")
            listed = await api.get("/streams")
            assert ([one["name"] for one in listed["data"]], listed["unavailable"]) == (["orders"], ["eu"])
            await api.publish(("a", 1), stream="orders")


async def test_connections_to_all_databases_are_bounded(dsn: str, eu_dsn: str) -> None:
    await _listed(dsn)
    async with servers.opened(dsn) as home:
        await Admin(home).add_database("zz", "env:HR_TEST_EU", unchecked=True)
    options = Options(allowed_hosts=OPTIONS.allowed_hosts, data_connections=3, max_data_connections=5)
    async with serving_here(dsn, options) as api:
        await opened(api, "eu")
        assert api.server.databases.open["eu"].app.database.max_connections == 3
        refused = await api.refused("POST", "/streams", {"name": "x", "database": "zz"}, status=503)
        assert "'zz'" in refused["summary"]
        assert "max_data_connections" in api.server.databases.away["zz"]


async def test_a_database_that_was_removed_and_still_drains_is_stopped_with_the_others(
    dsn: str, eu_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _listed(dsn)
    async with serving_here(dsn) as api:
        await opened(api, "eu")
        databases = api.server.databases
        app = databases.open["eu"].app
        stop, stops = app.stop, []
        monkeypatch.setattr(app, "stop", lambda: stops.append("eu"))  # as if a handler took its time
        await api.client.delete("/v1/databases/eu")
        while databases.away or databases.open:
            await anyio.lowlevel.checkpoint()
        databases.hurry()
        stop()
        assert stops == ["eu", "eu"]
