"""The contract's rows about pull consumers by name (dialect B)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_UPDATE = {
    "record": {"id": 1, "title": "Emperor of the Known Universe", "price": 1.50},
    "changes": {"title": "Duke of Arrakis"},
    "action": "update",
    "metadata": {
        "table_schema": "public", "table_name": "fremen", "commit_timestamp": "2023-10-16T09:45:00Z", "commit_lsn": 117,
        "commit_idx": 3,
    },
}  # fmt: skip
_ROW = {"record": {"id": 1}, "metadata": {"table_schema": "public", "table_name": "fremen"}}


async def _begin(api: Api, *data: Any) -> dict[str, Any]:
    await api.stream()
    created = await api.consumer("arrakis")
    await api.publish(*((f"key.{number}", one) for number, one in enumerate(data)))
    return {"id": created["id"], "name": "arrakis"}


async def test_a_change_is_delivered_as_it_was_captured_with_its_consumer(api: Api) -> None:
    consumer = await _begin(api, _UPDATE, {**_UPDATE, "action": "insert", "changes": None})
    update, insert = (await api.get("/http_pull_consumers/arrakis/receive", batch_size=10))["data"]
    assert set(update) == {"ack_id", "ack_token", "record", "changes", "action", "metadata"}
    assert update["ack_id"] == update["ack_token"]
    assert {name: update[name] for name in ("record", "changes", "action")} == {
        name: _UPDATE[name] for name in ("record", "changes", "action")
    }
    assert update["metadata"] == {**_UPDATE["metadata"], "consumer": consumer}
    assert (insert["changes"], insert["action"]) == (None, "insert")


async def test_a_row_has_neither_changes_nor_action(api: Api) -> None:
    consumer = await _begin(api, _ROW)
    (row,) = (await api.post("/http_pull_consumers/arrakis/receive", {"batch_size": 10}))["data"]
    assert set(row) == {"ack_id", "ack_token", "record", "metadata"}
    assert row["record"] == {"id": 1}
    assert row["metadata"] == {**_ROW["metadata"], "consumer": consumer}


async def test_any_other_data_is_the_record(api: Api) -> None:
    given = [{"product": "Shoes"}, "text", [1, 2.50], None, {"record": 1}, {"record": 1, "metadata": "no"}]
    consumer = await _begin(api, *given)
    found = (await api.get("/http_pull_consumers/arrakis/receive", batch_size=10))["data"]
    assert [one["record"] for one in found] == given
    assert all(set(one) == {"ack_id", "ack_token", "record", "metadata"} for one in found)
    metadata = found[0]["metadata"]
    at = (await api.get("/streams/orders/messages", limit=1))["data"][0]["inserted_at"]
    assert metadata == {
        "table_schema": None, "table_name": None, "commit_timestamp": at, "commit_lsn": None, "commit_idx": None,
        "consumer": consumer,
    }  # fmt: skip


async def test_receive_takes_one_message_by_default_and_waits(api: Api) -> None:
    await _begin(api, 1, 2)
    for method in ("GET", "POST"):
        assert len((await api.call(method, "/http_pull_consumers/arrakis/receive"))["data"]) == 1
    assert await api.get("/http_pull_consumers/arrakis/receive", wait_for="1ms") == {"data": []}
    assert await api.post("/http_pull_consumers/arrakis/receive", {"wait_for": "1ms"}) == {"data": []}


async def test_either_name_of_ack_ids_settles(api: Api) -> None:
    await _begin(api, 1, 2)
    first, second = (await api.get("/http_pull_consumers/arrakis/receive", batch_size=10))["data"]
    path = "/http_pull_consumers/arrakis"
    assert await api.post(f"{path}/nack", {"ack_tokens": [first["ack_token"]]}) == {"success": True}
    assert await api.post(f"{path}/ack", {"ack_ids": [second["ack_id"]]}) == {"success": True}
    (again,) = (await api.get(f"{path}/receive", batch_size=10))["data"]
    assert again["record"] == 1
    assert await api.post(f"{path}/ack", {"ack_tokens": [again["ack_token"]]}) == {"success": True}
    info = (await api.get("/streams/orders/consumers/arrakis"))["info"]
    assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)
    answer = await api.refused("POST", f"{path}/ack", {"ack_tokens": [again["ack_token"]], "strict": True}, status=409)
    assert answer["stale"] == [again["ack_token"]]


async def test_a_name_that_several_streams_have_is_qualified(api: Api) -> None:
    await _begin(api, 1)
    await api.stream("others")
    elsewhere = await api.consumer("arrakis", "others")
    answer = await api.refused("GET", "/http_pull_consumers/arrakis/receive", status=409)
    assert "orders:arrakis" in answer["summary"]
    assert "others:arrakis" in answer["summary"]
    assert len((await api.get("/http_pull_consumers/orders:arrakis/receive"))["data"]) == 1
    assert await api.get("/http_pull_consumers/others:arrakis/receive") == {"data": []}
    assert await api.get(f"/http_pull_consumers/{elsewhere['id']}/receive") == {"data": []}


async def test_unknown_names_and_methods_are_refused(api: Api) -> None:
    await _begin(api)
    for path in ("nobody", "orders:nobody"):
        await api.refused("GET", f"/http_pull_consumers/{path}/receive", status=404)
    await api.refused("GET", "/http_pull_consumers/arrakis/ack", status=405)
    await api.refused("DELETE", "/http_pull_consumers/arrakis/receive", status=405)
    await api.refused("POST", "/http_pull_consumers/arrakis/ack", {"ack_tokens": ["x"]}, status=422)
