"""A server whose role has `headrace grant admin` alone, in its own database and in a further one. No owner is connected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.schedules import ScheduleSpec
from tests.server.calling import Api
from tests.server.databases.conftest import opened, serving_here
from tests.support import servers
from tests.support.paths import filled
from tests.support.roles import as_role

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def granted(home_dsn: str, eu_dsn: str) -> AsyncIterator[Api]:
    """A server as a role, with a further database that it uses as the same role."""
    role = f"server_{uuid4().hex[:12]}"
    async with servers.opened(home_dsn) as home, servers.opened(eu_dsn) as eu:
        await home.fetch(f"create role {role} login password 'secret'")
        for one in (home, eu):
            await store.grant(one, "admin", role)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HR_TEST_EU", as_role(eu_dsn, role))
        async with serving_here(as_role(home_dsn, role)) as api:
            assert api.server.app.database.granted
            await api.post("/databases", {"name": "eu", "url_from": "env:HR_TEST_EU"}, 201)
            await opened(api, "eu")
            yield api
    for dsn in (home_dsn, eu_dsn):
        async with servers.opened(dsn) as owner:
            await owner.fetch(f"drop owned by {role}")
    async with servers.opened(home_dsn) as owner:
        await owner.fetch(f"drop role {role}")


async def test_streams_of_both_databases_are_served(granted: Api) -> None:
    for stream, database in (("orders", None), ("visits", "eu")):
        await granted.stream(stream, **({} if database is None else {"database": database}))
        await granted.consumer("ship", stream)
        await granted.publish(("a", 1), ("b", 2), stream=stream)
        first, second = await granted.receive(stream=stream)
        path = f"/streams/{stream}/consumers/ship"
        await granted.post(f"{path}/ack", {"ack_ids": [first["ack_id"]]})
        await granted.post(f"{path}/nack", {"ack_ids": [second["ack_id"]], "error": "no"})
        await granted.post("/sources", {"kind": "webhook", "name": f"hook-{stream}", "stream": stream}, 201)
        await granted.post(f"/webhook/hook-{stream}", {"id": 1})
    listed = await granted.get("/streams")
    assert [(one["name"], one.get("database")) for one in listed["data"]] == [("orders", None), ("visits", "eu")]
    assert (await granted.post("/databases/eu/check"))["conflicts"] == []
    metrics = (await granted.client.get("/metrics")).text
    assert 'stream="visits"' in metrics
    assert (await granted.client.get("/ready")).json()["ready"]


async def test_no_route_lacks_a_right(granted: Api) -> None:
    await granted.stream("tried", database="eu")
    await granted.consumer("only", "tried")
    await granted.publish(("a", 1), stream="tried")
    await granted.post("/sources", {"kind": "webhook", "name": "hook", "stream": "tried"}, 201)
    eu = granted.server.databases.open["eu"].app.database
    await store.declare_schedule(eu, ScheduleSpec(name="daily", stream="tried", every="@daily", key="k"))
    document = (await granted.client.get("/openapi.json")).json()
    calls = [(method, path, one) for path, item in document["paths"].items() for method, one in item.items()]
    calls.sort(key=lambda call: (call[0] == "delete", -len(call[1])))
    assert len(calls) > 60
    for method, path, operation in calls:
        if operation["operationId"] in ("add_database", "remove_database", "create_token", "sign_in", "sign_out"):
            continue  # the fixture adds it, the others would end the test, and browsers sign in
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
        if "receive" in path and body is not None:
            body = {"batch_size": 1}  # without waiting
        answer = await granted.client.request(method, filled(path, stream="tried", consumer="only"), json=body)
        assert answer.status_code not in (403, 500, 503), (method, path, answer.text)
        assert "privilege" not in answer.text, (method, path, answer.text)
    await granted.call("DELETE", "/streams/tried")
    assert (await granted.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201))["scopes"] == ["admin"]
