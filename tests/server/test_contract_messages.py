"""The contract's rows about a stream's messages."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio


async def test_one_message_is_published(api: Api) -> None:
    await api.stream()
    assert await api.post("/streams/orders/messages", {"key": "a.b", "data": {"x": 1}}) == {"data": {"published": 1}}
    (found,) = (await api.get("/streams/orders/messages"))["data"]
    assert set(found) == {"key", "data", "seq", "stream_id", "headers", "inserted_at", "updated_at"}
    assert (found["key"], found["data"], found["seq"], found["headers"]) == ("a.b", {"x": 1}, 1, None)


async def test_a_message_with_a_time_to_live_says_when_it_expires(api: Api) -> None:
    await api.stream()
    await api.consumer()
    path = "/streams/orders/messages"
    await api.post(path, {"key": "a", "data": 1, "expires_in_ms": 60_000, "headers": {"trace": "x"}})
    await api.post(path, {"messages": [{"key": "b", "data": 2, "expires_in_ms": 1}, {"key": "c", "data": 3}]})
    first, second, third = (await api.get(path))["data"]
    lives = datetime.fromisoformat(first["expires_at"]) - datetime.fromisoformat(first["inserted_at"])
    assert (lives.total_seconds(), first["headers"]) == (60, {"trace": "x", "headrace-expires-in": 60})
    assert (second["headers"], "expires_at" in third) == ({"headrace-expires-in": 0.001}, False)
    (peeked, _) = (await api.get("/streams/orders/consumers/ship/messages"))["data"]
    assert peeked["message"]["expires_at"] == first["expires_at"]
    received = [delivery["message"] for delivery in await api.receive()]
    assert [(one["seq"], one.get("expires_at")) for one in received] == [(1, first["expires_at"]), (3, None)]


@pytest.mark.parametrize("given", [0, -1, 3_153_600_000_001])
async def test_a_time_to_live_out_of_range_is_refused(api: Api, given: float) -> None:
    await api.stream()
    answer = await api.refused(
        "POST", "/streams/orders/messages", {"key": "a", "data": 1, "expires_in_ms": given}, status=422
    )
    assert "expires_in_ms" in answer["validation_errors"]


async def test_messages_are_erased_and_a_trace_stays(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1), ("a", 2), ("b", 3))
    path = "/streams/orders/erasures"
    assert await api.post(path, {"seqs": [1, 3, 9], "reason": "asked for"}) == {"data": {"erased": [1, 3]}}
    assert await api.post(path, {"seqs": [1]}) == {"data": {"erased": []}}
    listed = await api.get(path, limit=1)
    assert [(one["seq"], one["reason"]) for one in listed["data"]] == [(1, "asked for")]
    assert [one["seq"] for one in (await api.get(path, after=listed["next"]))["data"]] == [3]
    assert [one["seq"] for one in (await api.get(path, before=3))["data"]] == [1]
    assert [one["message"]["seq"] for one in await api.receive()] == [2]
    await api.refused("POST", "/streams/nowhere/erasures", {"seqs": [1]}, status=404)


async def test_a_page_of_erased_messages_has_a_largest_size(api: Api) -> None:
    await api.stream()
    await api.server.app.database.fetchval(
        "insert into headrace_internal.erasures (stream_id, seq, erased_at, erased_by, reason)"
        " select s.id, n, now(), 'me', repeat('\U0001f642', 2000) from headrace_internal.streams as s, generate_series(1, 501) as n"
    )
    path = "/streams/orders/erasures"
    answer = await api.answer("GET", path, limit=10_000)
    assert len(answer.content) < 4_200_000
    assert (len(answer.json()["data"]), answer.json()["next"]) == (500, 500)
    assert [one["seq"] for one in (await api.get(path, limit=10_000, after=500))["data"]] == [501]
    assert (await api.get(path, limit=10_000, before=502))["data"][0]["seq"] == 2


_BESIDE: list[dict[str, Any]] = [
        {"unique_key": "x"}, {"unique_while": "waiting"}, {"expires_in_ms": 1000}, {"delay_ms": 1000}, {"headers": {}},
        {"deliver_at": "2031-01-01T00:00:00Z"}, {"message_id": "m"}, {"key": "a"}, {"data": None},
    ]  # fmt: skip


async def test_what_stands_beside_several_messages_is_refused(api: Api) -> None:
    await api.stream()
    for beside in _BESIDE:
        body = {"messages": [{"key": "a", "data": 1}], **beside}
        answer = await api.refused("POST", "/streams/orders/messages", body, status=422)
        assert next(iter(beside)) in answer["summary"]
        assert "messages" in answer["validation_errors"]
        assert (await api.get("/streams/orders/messages"))["data"] == []


async def test_messages_are_published_all_or_none(api: Api) -> None:
    await api.stream()
    given = [{"key": "a", "data": 1, "headers": {"trace": "x"}}, {"key": "b", "data": "text"}]
    assert await api.post("/streams/orders/messages", {"messages": given}) == {"data": {"published": 2}}
    answer = await api.refused(
        "POST", "/streams/orders/messages", {"messages": [{"key": "c", "data": 1}, {"key": "*", "data": 2}]}, status=422
    )
    assert "'*'" in answer["summary"]
    found = (await api.get("/streams/orders/messages"))["data"]
    assert [(one["key"], one["data"], one["headers"]) for one in found] == [
        ("a", 1, {"trace": "x"}),
        ("b", "text", None),
    ]


@pytest.mark.parametrize(
    "data", ['"a bare string"', "12345678901234567890123.10", '{"b":1,"a":1.0,"a":2}', "null", "[1e400]", '"\\u00e9\\ud83d\\ude00"']
)  # fmt: skip
async def test_data_is_any_json_and_comes_back_letter_by_letter(api: Api, data: str) -> None:
    await api.stream()
    await api.consumer()
    content = f'{{"key": "a", "data": {data}}}'
    answer = await api.client.post(f"{api.prefix}/streams/orders/messages", content=content)
    assert answer.json() == {"data": {"published": 1}}
    for path in ("/messages", "/messages/a", "/consumers/ship/messages", "/consumers/ship/receive"):
        body = (await api.answer("GET", f"/streams/orders{path}")).text
        assert f'"data":{data}' in body


async def test_messages_are_listed_from_either_end(api: Api) -> None:
    await api.stream()
    await api.publish(*((f"key.{n}", n) for n in range(150)))
    assert len((await api.get("/streams/orders/messages"))["data"]) == 100

    async def seqs(**query: Any) -> list[int]:
        return [one["seq"] for one in (await api.get("/streams/orders/messages", **query))["data"]]

    assert await seqs(limit=2) == [1, 2]
    assert await seqs(limit=2, sort="seq_asc") == [1, 2]
    assert await seqs(limit=2, sort="seq_desc") == [150, 149]
    assert await seqs(limit=2, start_seq=20) == [20, 21]


async def test_messages_are_listed_by_key_and_content(api: Api) -> None:
    await api.stream()
    await api.publish(("a.x", {"n": 1}), ("b.x", {"n": 2}), ("a.y", {"n": 3}))

    async def keys(**query: Any) -> list[str]:
        return [one["key"] for one in (await api.get("/streams/orders/messages", **query))["data"]]

    assert await keys(key_pattern="a.*") == ["a.x", "a.y"]
    assert await keys(where="data.n >= 2") == ["b.x", "a.y"]
    assert await keys(key_pattern="a.>", where="data.n > 1") == ["a.y"]


async def test_bad_queries_are_422(api: Api) -> None:
    await api.stream()
    for query, field in (
        ({"limit": 0}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"sort": "up"}, "sort"),
    ):
        answer = await api.refused("GET", "/streams/orders/messages", status=422, **query)
        assert list(answer["validation_errors"]) == [field]
    await api.refused("GET", "/streams/orders/messages", status=422, key_pattern="a..b")
    await api.refused("GET", "/streams/orders/messages", status=422, where="data.n >")
    await api.refused("GET", "/streams/orders/messages", status=422, start_seq=-1)


async def test_the_latest_message_of_a_key_is_returned(api: Api) -> None:
    await api.stream()
    await api.publish(("a", 1), ("b", 2), ("a", 3))
    found = await api.get("/streams/orders/messages/a")
    assert (found["key"], found["data"], found["seq"]) == ("a", 3, 3)
    assert (await api.refused("GET", "/streams/orders/messages/c", status=404))["code"] == "unknown_key"


async def test_a_key_may_hold_a_slash_or_any_letter(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a/b.c+d", 1), ("é.%2F", 2))
    assert (await api.get("/streams/orders/messages/a%2Fb.c%2Bd"))["data"] == 1
    assert (await api.get("/streams/orders/messages/%C3%A9.%252F"))["data"] == 2
    (one,) = (await api.get("/streams/orders/messages/a%2fb.c%2Bd/consumer_info"))["data"]
    assert one["state"] == "pending"


async def test_consumer_info_reports_the_state_of_a_key_for_every_consumer(api: Api) -> None:
    await api.stream()
    await api.consumer("others", filter="b.>")
    await api.consumer("slow")
    await api.consumer("worker")
    await api.publish(("a", 1))
    (received,) = await api.receive("worker")
    found = {one["consumer"]: one for one in (await api.get("/streams/orders/messages/a/consumer_info"))["data"]}
    assert {name: one["state"] for name, one in found.items()} == {
        "others": "filtered",
        "slow": "pending",
        "worker": "in_flight",
    }
    assert found["worker"]["deliver_count"] == 1
    assert found["worker"]["not_visible_until"] is not None
    assert found["worker"]["seq"] == 1
    await api.post("/streams/orders/consumers/worker/ack", {"ack_ids": [received["ack_id"]]})
    found = {one["consumer"]: one for one in (await api.get("/streams/orders/messages/a/consumer_info"))["data"]}
    assert found["worker"]["state"] == "acked"
    await api.refused("GET", "/streams/orders/messages/zzz/consumer_info", status=404)


async def test_messages_are_republished(api: Api) -> None:
    await api.stream()
    await api.stream("copies")
    await api.publish(("a.1", 1), ("b.1", 2), ("a.2", 3))
    body = {"target": "copies", "filter": "a.>"}
    assert await api.post("/streams/orders/republish", {**body, "dry_run": True}) == {"data": {"published": 2}}
    assert (await api.get("/streams/copies/messages"))["data"] == []
    assert await api.post("/streams/orders/republish", body) == {"data": {"published": 2}}
    assert [one["key"] for one in (await api.get("/streams/copies/messages"))["data"]] == ["a.1", "a.2"]
    await api.refused("POST", "/streams/orders/republish", {"target": "nowhere"}, status=404)
    await api.refused("POST", "/streams/orders/republish", {**body, "start_seq": 5, "end_seq": 2}, status=422)


async def test_a_message_may_be_published_later_and_an_id_only_once(api: Api) -> None:
    await api.stream()
    later = {"key": "a", "data": 1, "delay_ms": 3_600_000}
    assert await api.post("/streams/orders/messages", later) == {"data": {"published": 1}}
    assert (await api.get("/streams/orders"))["info"]["scheduled"] == 1
    once = {"key": "a", "data": 2, "message_id": "m1"}
    assert await api.post("/streams/orders/messages", once) == {"data": {"published": 1}}
    assert await api.post("/streams/orders/messages", once) == {"data": {"published": 0}}
    assert [one["data"] for one in (await api.get("/streams/orders/messages"))["data"]] == [2]


async def test_a_message_with_a_unique_key_is_published_unless_one_is_pending(api: Api) -> None:
    await api.stream()
    await api.consumer("ship")
    unique = {"key": "a", "data": 1, "unique_key": "x"}
    assert await api.post("/streams/orders/messages", unique) == {"data": {"published": 1}}
    assert await api.post("/streams/orders/messages", unique) == {"data": {"published": 0}}
    several = {"messages": [{**unique, "data": 2}, {**unique, "unique_key": "y"}, {"key": "a", "data": 3}]}
    assert await api.post("/streams/orders/messages", several) == {"data": {"published": 2}}
    await api.post("/streams/orders/consumers/ship/receive", {"batch_size": 1})
    waiting = {**unique, "unique_while": "waiting"}
    assert await api.post("/streams/orders/messages", waiting) == {"data": {"published": 1}}
    for key in ("", "x" * 257, "a\0b"):
        refused = await api.refused("POST", "/streams/orders/messages", {**unique, "unique_key": key}, status=422)
        assert list(refused["validation_errors"]) == ["unique_key"]


async def test_at_most_10000_messages_are_published_at_once(api: Api) -> None:
    await api.stream()
    many = {"messages": [{"key": "a", "data": 1}] * 10_001}
    answer = await api.client.post(f"{api.prefix}/streams/orders/messages", content=json.dumps(many))
    assert answer.status_code == 422
    assert "10,000" in answer.json()["summary"]
    await api.refused("POST", "/streams/orders/messages", {"messages": []}, status=422)
