"""The shapes in which push consumers send changes of captured tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import store
from tests.server.calling import Api
from tests.server.push.endpoints import Endpoint, PushApp

pytestmark = pytest.mark.asyncio

TABLE = {"table_schema": "public", "table_name": "members", "commit_timestamp": "2024-10-28T21:37:53Z", "commit_lsn": 1}
CHANGE: dict[str, Any] = {"record": {"id": 2}, "changes": {"name": "Chani"}, "action": "update", "metadata": TABLE}
ROW: dict[str, Any] = {"record": {"id": 1, "name": "Paul"}, "metadata": TABLE}
OTHERS: list[Any] = [{"n": 1}, "text", None, {"record": 1}, {"record": 1, "metadata": "none"}, [CHANGE]]


async def test_a_change_and_a_row_come_with_their_parts_at_the_top(push_app: PushApp, endpoint: Endpoint) -> None:
    await push_app.declare(endpoint.url, shape="change", concurrency=(1, 1))
    for data in (CHANGE, ROW):
        await push_app.app.publish("orders", "k", data)
    change, row = [request.json for request in await endpoint.until(2)]
    consumer = change["metadata"].pop("consumer")
    assert (set(consumer), consumer["name"]) == ({"id", "name"}, "ship")
    assert change.pop("ack_id") == change.pop("ack_token")
    assert change == CHANGE
    assert row["metadata"].pop("consumer") == consumer
    assert row.pop("ack_id") == row.pop("ack_token")
    assert row == ROW


async def test_a_batch_of_changes_comes_as_a_list(push_app: PushApp, endpoint: Endpoint) -> None:
    await store.create_stream(push_app.app.database, "orders")
    await push_app.app.publish_many("orders", [("k", CHANGE), ("k", {"n": 1})])
    await push_app.declare(endpoint.url, shape="change", batch=10)
    (request,) = await endpoint.until(1)
    change, other = request.json["data"]
    assert (change["record"], other["message"]["data"]) == ({"id": 2}, {"n": 1})


@pytest.mark.parametrize("shape", ["message", "change"])
async def test_any_other_message_comes_in_the_shape_that_receive_gives(
    push_app: PushApp, endpoint: Endpoint, shape: str
) -> None:
    await push_app.declare(endpoint.url, shape=shape, concurrency=(1, 1))
    for data in OTHERS:
        await push_app.app.publish("orders", "k", data)
    requests = await endpoint.until(len(OTHERS))
    assert [request.json["message"]["data"] for request in requests] == OTHERS


async def test_a_consumer_that_is_created_under_api_sends_changes_in_their_shape(api: Api) -> None:
    await api.stream()
    url = "https://example.com/hook"
    made: dict[str, Any] = {
        "url": {"url": url},
        "push": {"push": {"url": url}},
        "named": {"push": {"url": url, "shape": "message"}},
    }
    for prefix, default in (("/api", "change"), ("/v1", "message")):
        for path in ("streams/orders/consumers", "http-consumers"):
            for name, settings in made.items():
                consumer = f"{name}-{prefix[1:]}-{path[:4]}"
                answer = await api.client.post(f"{prefix}/{path}", json={"name": consumer, "kind": "push", **settings})
                assert answer.json()["push"]["shape"] == ("message" if name == "named" else default)
                edited = await api.call(
                    "PATCH", f"/streams/orders/consumers/{consumer}", {"push": {"timeout_ms": 5000}}
                )
                assert edited["push"]["shape"] == answer.json()["push"]["shape"], "it stays"
    answer = await api.client.post("/api/streams/orders/consumers", json={"name": "pull"})
    assert answer.json()["push"] is None


async def test_another_shape_is_refused(api: Api) -> None:
    await api.stream()
    push = {"url": "https://example.com/hook", "shape": "row"}
    answer = await api.refused(
        "POST", "/streams/orders/consumers", {"name": "c", "kind": "push", "push": push}, status=422
    )
    assert "shape" in json.dumps(answer["validation_errors"])
