"""Sources that capture tables, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.sources import SourceInfo
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.store import CaptureBatch, CaptureFailure
from tests.server.calling import Api
from tests.support.capturers import begun

pytestmark = pytest.mark.asyncio

NOWHERE = "postgresql://shop:hush@127.0.0.1:1/shop"
ORDERS = {"kind": "postgres", "name": "orders", "stream": "orders", "tables": ["public.orders"]}


@pytest_asyncio.fixture
async def shop(database: store.Database) -> store.Database:
    """A database with the table `orders`."""
    await database.fetchval("create table orders (id int primary key, total numeric)")
    return database


@pytest_asyncio.fixture
async def api(dsn: str) -> AsyncIterator[Api]:
    """A server that captures nothing itself, so that the test reports the state of captures."""
    app = App(dsn)
    server = Server(app, Options(capture=False))
    async with app.running():
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Api(client, server)


async def _made(api: Api, **settings: Any) -> dict[str, Any]:
    created: dict[str, Any] = await api.post("/sources", {**ORDERS, **settings}, 201)
    return created


async def test_a_source_is_returned_with_its_settings_and_its_state(shop: store.Database, api: Api) -> None:
    created = await _made(
        api, database=NOWHERE, where={"field": "data.record.total", "op": ">", "value": 5}, heartbeat=30
    )
    assert "hush" not in json.dumps(created)
    stream = await api.get("/streams/orders")
    expected = {
        "name": "orders", "kind": "postgres", "stream": "orders", "stream_id": stream["id"], "tables": ["public.orders"],
        "mode": "changes", "database": NOWHERE.replace("hush", "…"), "columns": {}, "key": None, "rate": None,
        "actions": ["insert", "update", "delete", "truncate"], "where": "data.record.total > 5", "group": None, "sort": None,
        "deletes": "ignore", "numeric": "string", "transform": None, "backfill": True, "slot": None, "shared_slot": None, "publication": None,
        "heartbeat": 30.0, "verify_every": None, "alarm": 10**9, "state": "unattended", "reason": None, "mend": None,
    }  # fmt: skip
    assert {name: created[name] for name in expected} == expected
    assert set(created) - set(expected) == {"id", "capture", "inserted_at", "updated_at", "info", "replication_slot"}
    for ref in ("orders", created["id"]):
        found = await api.get(f"/sources/{ref}")
        assert (found["id"], found["tables"]) == (created["id"], ["public.orders"])
    await api.post("/sources", {"name": "hook", "stream": "orders"}, 201)
    assert [one["kind"] for one in (await api.get("/sources"))["data"]] == ["webhook", "postgres"]


async def test_making_it_again_and_sending_back_what_was_returned(shop: store.Database, api: Api) -> None:
    created = await _made(api, database=NOWHERE)
    settings = {name: created[name] for name in (*ORDERS, "database", "where", "columns", "heartbeat", "alarm")}
    assert "validation_errors" not in await api.refused("POST", "/sources", settings, status=409)
    for method in ("PATCH", "PUT"):
        changed = await api.call(method, "/sources/orders", {"database": created["database"], "rate": 7})
        assert changed["rate"] == 7
    assert (await store.source_with_secrets(shop, "orders")).settings["database"] == NOWHERE


REFUSED = [
    ({"tables": None}, 422), ({"tables": []}, 422), ({"tables": ["orders"]}, 422), ({"mode": "tables"}, 422), ({"rate": 0}, 422),
    ({"name": "Up"}, 422), ({"stream": "Up!"}, 422), ({"where": "data.record."}, 422), ({"database": "nowhere"}, 422),
    ({"columns": {"public.nope": ["id"]}}, 422), ({"actions": ["drop"]}, 422), ({"sort": "id"}, 422), ({"nope": 1}, 422),
    ({"key": "{nope}"}, 422), ({"heartbeat": "30s"}, 422), ({"heartbeat": 0}, 422), ({"alarm": 2**70}, 422), ({"rate": 5}, 409),
    ({"signature": "github"}, 422), ({"secret": "x"}, 422), ({"max_body": 5}, 422), ({"kind": "webhook"}, 422),
    ({"tables": ["public.\0"]}, 422), ({"database": NOWHERE.replace("hush", "…")}, 422), ({"slot": "No!"}, 422),
    ({"mode": "rows", "name": "rows"}, 422),
]  # fmt: skip


async def test_invalid_input_is_refused_and_changes_nothing(shop: store.Database, api: Api) -> None:
    await _made(api)
    before = [(one["name"], one["updated_at"]) for one in (await api.get("/sources"))["data"]]
    for settings, status in REFUSED:
        await api.refused("POST", "/sources", {**ORDERS, **settings}, status=status)
    for settings in ({"mode": "rows"}, {"slot": "x"}, {"publication": "x"}, {"max_body": 5}, {"secret": "x"}):
        answer = await api.refused("PATCH", "/sources/orders", settings, status=422)
        assert next(iter(settings)) in answer["summary"]
    answer = await api.refused("POST", "/sources", {**ORDERS, "secret": "x"}, status=422)
    assert answer["validation_errors"] == {"secret": ["A postgres source has none."]}
    assert [(one["name"], one["updated_at"]) for one in (await api.get("/sources"))["data"]] == before
    assert [one["name"] for one in (await api.get("/streams"))["data"]] == ["orders"]


async def test_a_source_is_checked_before_it_is_made_and_after(shop: store.Database, api: Api) -> None:
    for path, body in (("/source-check", ORDERS), ("/sources/orders/check", None)):
        found = (await api.post(path, body))["data"]
        assert {"what", "level", "message", "hint"} == set(found[0])
        assert "replica identity full" in json.dumps(found)
        assert "error" not in {one["level"] for one in found}
        if body is not None:
            await _made(api)
    found = (await api.post("/source-check", {**ORDERS, "tables": ["public.nope"]}))["data"]
    assert "error" in {one["level"] for one in found}
    await api.refused("POST", "/source-check", {"name": "hook", "stream": "orders"}, status=422)


async def test_pausing_and_resuming(shop: store.Database, api: Api) -> None:
    await _made(api)
    assert (await api.post("/sources/orders/pause"))["state"] == "paused"
    assert (await api.post("/sources/orders/resume"))["capture"]["paused_at"] is None
    assert (await api.get("/sources/orders/backfills")) == {"data": []}
    await api.post("/sources/orders/resume", {"anew": True})
    assert [one["table"] for one in (await api.get("/backfills"))["data"]] == ["public.orders"]
    await api.refused("POST", "/sources/orders/resume", {"new": True}, status=422)


async def test_backfills_are_started_seen_and_cancelled(shop: store.Database, api: Api) -> None:
    await _made(api)
    body = {"tables": ["public.orders"], "where": "data.record.total > 5", "rate": 9}
    (backfill,) = (await api.post("/sources/orders/backfills", body, 201))["data"]
    assert (backfill["source"], backfill["table"], backfill["state"], backfill["rate"]) == (
        "orders",
        "public.orders",
        "queued",
        9,
    )
    assert (backfill["done"], backfill["time_left"]) == (None, None)
    assert (await api.get("/backfills")) == (await api.get("/sources/orders/backfills")) == {"data": [backfill]}
    assert (await api.refused("POST", "/sources/orders/backfills", status=409))["code"] == "exists"
    for wrong in (
        {"tables": ["public.nope"]},
        {"where": "data.record.nope = 1", "tables": ["public.orders"]},
        {"rate": 0},
    ):
        await api.refused("POST", "/sources/orders/backfills", wrong, status=422)
    await api.refused("POST", "/sources/orders/backfills/cancel", {"id": "nope"}, status=422)
    assert await api.post("/sources/orders/backfills/cancel", {"id": backfill["id"]}) == {"data": {"cancelled": 1}}
    assert await api.post("/sources/orders/backfills/cancel") == {"data": {"cancelled": 0}}


async def test_a_table_is_verified_and_repaired(shop: store.Database, api: Api) -> None:
    await _made(api)
    (verification,) = (await api.post("/sources/orders/verify", {"rate": 9}, 201))["data"]
    assert (verification["kind"], verification["table"], verification["rate"]) == ("verification", "public.orders", 9)
    assert verification["differences"] is None
    (repair,) = (await api.post("/sources/orders/verify", {"tables": ["public.orders"], "repair": True}, 201))["data"]
    assert repair["kind"] == "repair"
    assert (await api.get("/sources/orders/backfills"))["data"] == [repair, verification]
    assert (await api.refused("POST", "/sources/orders/verify", status=409))["code"] == "exists"
    for wrong in ({"tables": ["public.nope"]}, {"rate": 0}, {"where": "true"}):
        await api.refused("POST", "/sources/orders/verify", wrong, status=422)
    assert await api.post("/sources/orders/backfills/cancel") == {"data": {"cancelled": 2}}


async def test_failed_changes_are_seen_tried_again_and_dropped(shop: store.Database, api: Api) -> None:
    await _made(api)
    number, epoch = await begun(shop, "orders")
    failures = [CaptureFailure(key="k", data="{}", error="no") for _ in range(3)]
    await store.append_captured(shop, number, epoch, "orders", CaptureBatch(failures=failures))
    ids = [one["id"] for one in (await api.get("/sources/orders/failures"))["data"]]
    assert [one["id"] for one in (await api.get("/sources/orders/failures", above=ids[0], limit=1))["data"]] == ids[1:2]
    assert await api.post("/sources/orders/failures/retry", {"ids": ids[:1]}) == {"data": {"retried": 1}}
    assert await api.post("/sources/orders/failures/drop", {"ids": ids[1:2]}) == {"data": {"dropped": 1}}
    assert await api.post("/sources/orders/failures/drop") == {"data": {"dropped": 2}}
    await api.refused("POST", "/sources/orders/failures/drop", {"ids": [0]}, status=422)


async def test_removing_needs_force_where_the_slot_cannot_be_dropped(shop: store.Database, api: Api) -> None:
    created = await _made(api, database=NOWHERE)
    answer = await api.refused("DELETE", "/sources/orders", status=409)
    assert answer["code"] == "slot_remains"
    assert "pg_drop_replication_slot" in answer["summary"]
    deleted = await api.call("DELETE", "/sources/orders", force=True)
    assert (deleted["id"], deleted["deleted"], "pg_drop_replication_slot" in deleted["left"]) == (
        created["id"],
        True,
        True,
    )
    created = await _made(api)
    assert await api.call("DELETE", "/sources/orders") == {"id": created["id"], "deleted": True}


async def test_a_token_for_one_stream_may_not_capture_tables_into_it(shop: store.Database, api: Api) -> None:
    await _made(api)
    await api.post("/tokens", {"name": "all", "scopes": ["admin"]}, 201)
    token = (await api.server.app.admin.create_token("one", ["admin:orders"])).token
    calls = [
        ("POST", "/sources", {**ORDERS, "name": "more"}), ("GET", "/sources/orders", None), ("PATCH", "/sources/orders", {"rate": 5}),
        ("DELETE", "/sources/orders", None), ("POST", "/source-check", ORDERS), ("POST", "/sources/orders/check", None),
        ("POST", "/sources/orders/pause", None), ("POST", "/sources/orders/backfills", None), ("GET", "/backfills", None),
        ("GET", "/sources/orders/failures", None),
    ]  # fmt: skip
    for method, path, body in calls:
        answer = await api.client.request(
            method, api.prefix + path, json=body, headers={"authorization": f"Bearer {token}"}
        )
        assert answer.status_code == 403, (method, path)
    source: SourceInfo = await api.server.app.admin.source("orders")
    assert source.settings["rate"] is None
