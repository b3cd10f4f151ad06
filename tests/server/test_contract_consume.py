"""The contract's rows about the consume API (dialect C)."""

from __future__ import annotations

import pytest

from headrace.model import conditions
from headrace.server.wire.filters import condition_of, filters_of
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_FILTERS = {"collection_id": "salesforce:contact", "resource_id": "*"}
_NEW = {
    "name": "my-http-consumer",
    "ack_wait_ms": 30000,
    "max_deliver": -1,
    "deliver_policy": "all",
    "filters": _FILTERS,
}
_PATH = "/http-consumers/my-http-consumer"


async def test_a_consumer_is_made_seen_changed_and_deleted(api: Api) -> None:
    await api.stream()
    created = await api.post("/http-consumers", _NEW, 201)
    assert {name: created[name] for name in _NEW} == _NEW
    condition = "data.collection_id = 'salesforce:contact' and (key like '%' or data.resource_id is not null)"
    assert (created["stream"], created["where"]) == ("orders", condition)
    found = await api.get(_PATH)
    assert found == created
    assert [one["id"] for one in (await api.get("/http-consumers"))["data"]] == [created["id"]]
    assert (await api.get("/streams/orders/consumers/my-http-consumer"))["id"] == created["id"]
    for method in ("PATCH", "PUT"):
        changed = await api.call(method, _PATH, {"max_deliver": 5, "filters": {"resource_id": 7}})
        assert (changed["max_deliver"], changed["filters"]) == (5, {"resource_id": 7})
    assert (await api.refused("POST", "/http-consumers", _NEW, status=409))["code"] == "exists"
    assert await api.call("DELETE", f"/http-consumers/{created['id']}") == {"id": created["id"], "deleted": True}
    await api.refused("GET", _PATH, status=404)


async def test_the_stream_must_be_named_unless_there_is_only_one(api: Api) -> None:
    answer = await api.refused("POST", "/http-consumers", {"name": "c"}, status=422)
    assert list(answer["validation_errors"]) == ["stream"]
    await api.stream()
    await api.stream("others")
    answer = await api.refused("POST", "/http-consumers", {"name": "c"}, status=422)
    assert "orders, others" in answer["summary"]
    assert (await api.post("/http-consumers", {"name": "c", "stream": "others"}, 201))["stream"] == "others"
    await api.refused("POST", "/http-consumers", {"name": "c", "stream": "none"}, status=404)


async def test_next_gives_records_with_what_they_lack(api: Api) -> None:
    await api.stream()
    await api.post("/http-consumers", {"name": "my-http-consumer"}, 201)
    whole = {
        "id": "aa9a", "collection_id": "salesforce:contact", "resource_id": "7d52", "data": {"FirstName": "Paul"},
        "upstream_updated_at": "2023-10-16T09:45:00Z", "extra": 1,
    }  # fmt: skip
    await api.publish(("a", whole), ("b", {"data": [1]}), ("c.d", {"product": "Shoes"}), ("e", "text"))
    at = [one["inserted_at"] for one in (await api.get("/streams/orders/messages"))["data"]]
    answer = await api.get(f"{_PATH}/next", batch_size=10)
    assert [set(one) for one in answer["data"]] == [{"ack_token", "record"}] * 4
    assert [one["record"] for one in answer["data"]] == [
        whole,
        {"id": "2", "collection_id": "orders", "resource_id": "b", "data": [1], "upstream_updated_at": at[1]},
        {"id": "3", "collection_id": "orders", "resource_id": "c.d", "data": {"product": "Shoes"}, "upstream_updated_at": at[2]},
        {"id": "4", "collection_id": "orders", "resource_id": "e", "data": "text", "upstream_updated_at": at[3]},
    ]  # fmt: skip


async def test_next_returns_the_backlog(api: Api) -> None:
    await api.stream()
    await api.post("/http-consumers", {"name": "my-http-consumer"}, 201)
    await api.publish(*((f"k.{n}", n) for n in range(5)))
    answer = await api.get(f"{_PATH}/next", batch_size=2)
    assert len(answer["data"]) == 2
    assert answer["info"] == {"num_pending": 3, "num_ack_pending": 2}


async def test_counting_is_shared_for_a_second(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.stream()
    await api.post("/http-consumers", {"name": "my-http-consumer"}, 201)
    consume = api.server.data_plane.consume
    now = 0.0
    monkeypatch.setattr(consume, "_clock", lambda: now)
    await api.get(f"{_PATH}/next")
    await api.publish(*((f"k.{n}", n) for n in range(5)))
    assert (await api.get(f"{_PATH}/next"))["info"] == {"num_pending": 0, "num_ack_pending": 0}
    now = 1.0
    assert (await api.get(f"{_PATH}/next"))["info"] == {"num_pending": 3, "num_ack_pending": 2}


async def test_records_are_acked_and_nacked_by_tokens(api: Api) -> None:
    await api.stream()
    await api.post("/http-consumers", {"name": "my-http-consumer"}, 201)
    await api.publish(("a", 1), ("b", 2))
    first, second = (await api.get(f"{_PATH}/next", batch_size=10))["data"]
    assert await api.post(f"{_PATH}/nack", {"ack_tokens": [first["ack_token"]]}) == {"success": True}
    assert await api.post(f"{_PATH}/ack", {"ack_tokens": [second["ack_token"]]}) == {"success": True}
    (again,) = (await api.get(f"{_PATH}/next", batch_size=10))["data"]
    assert again["record"]["data"] == 1
    await api.refused("POST", f"{_PATH}/next", status=405)
    await api.refused("GET", "/http-consumers/nobody/next", status=404)


async def test_filters_are_top_level_fields_of_the_data(api: Api) -> None:
    await api.stream()
    given = {
        "one": {"status": "paid"},
        "both": {"status": "paid", "n": 2},
        "anything": {"status": "*"},
        "several": {"n": [1, 3]},
        "missing": {"status": None},
        "odd": {"odd.key": True},
    }
    for name, filters in given.items():
        await api.post("/http-consumers", {"name": name, "filters": filters}, 201)
    await api.publish(
        ("a", {"status": "paid", "n": 1}), ("b", {"status": "paid", "n": 2}), ("c", {"n": 3}), ("d", {"odd.key": True}),
        ("e", "text"),
    )  # fmt: skip
    found = {}
    for name in given:
        records = (await api.get(f"/http-consumers/{name}/next", batch_size=10))["data"]
        found[name] = [one["record"]["resource_id"] for one in records]
    assert found == {
        "one": ["a", "b"],
        "both": ["b"],
        "anything": ["a", "b", "c", "d", "e"],
        "several": ["a", "c"],
        "missing": ["c", "d", "e"],
        "odd": ["d"],
    }


async def test_filters_are_returned_as_they_were_sent() -> None:
    for filters in ({"a": "x"}, {"a": 1, "b": True}, {"a": [1, "x"]}, {"a": None}, {"odd.key": 1.5, 'q"': "it's"}):
        condition = condition_of(filters)
        assert condition is not None
        assert filters_of(conditions.describe(condition)) == filters
    assert condition_of({"a": "*"}) is None
    for filters in ({"a": "*"}, {"collection_id": "x", "resource_id": "*"}, {"id": "*", "b": 1}, {"b": None, "a": "*"}):
        condition = condition_of(filters, "orders")
        assert condition is not None
        assert filters_of(conditions.describe(condition), "orders") == filters
    assert filters_of(None) == {}
    for where in ("data.n > 1", "data.a.b = 1", "key = 'a'", "data.a = 1 or data.b = 2", "data.a = 1 and data.a = 2"):
        assert filters_of(where) is None


async def test_filters_match_what_the_answer_shows(api: Api) -> None:
    await api.stream()
    messages: list[tuple[str, object]] = [
        ("a.1", {"id": "x1", "collection_id": "crm", "resource_id": "r1", "data": 1}),
        ("a.2", {"data": 2}), ("a.3", {"product": "Shoes"}), ("a.4", "text"), ("a.5", {"collection_id": "orders", "x": 1}),
        ("a.6", {"collection_id": None, "resource_id": None, "data": 6}), ("a.7", {"resource_id": 7, "data": 7}),
        ("a.8", {"collection_id": "crm"}),
    ]  # fmt: skip
    await api.publish(*messages)
    await api.post("/http-consumers", {"name": "all"}, 201)
    shown = [one["record"] for one in (await api.get("/http-consumers/all/next", batch_size=100))["data"]]
    assert len(shown) == len(messages)
    wanted: list[dict[str, object]] = [
        {"collection_id": "orders"}, {"collection_id": "crm"}, {"collection_id": ["crm", "orders"]}, {"collection_id": "none"},
        {"resource_id": "a.2"}, {"resource_id": "r1"}, {"resource_id": 7}, {"resource_id": ["a.3", "r1", 7]}, {"id": "2"},
        {"id": "x1"}, {"id": "02"}, {"collection_id": "orders", "resource_id": "a.4"},
        {"upstream_updated_at": shown[3]["upstream_updated_at"]}, {"upstream_updated_at": "never"},
    ]  # fmt: skip
    for number, filters in enumerate(wanted):
        created = await api.post("/http-consumers", {"name": f"c{number}", "filters": filters}, 201)
        assert created["filters"] == (await api.get(f"/http-consumers/c{number}"))["filters"] == filters
        found = [one["record"] for one in (await api.get(f"/http-consumers/c{number}/next", batch_size=100))["data"]]
        assert found == [record for record in shown if _matches(record, filters)], filters
    assert len([record for record in shown if _matches(record, wanted[0])]) == 6


def _matches(record: dict[str, object], filters: dict[str, object]) -> bool:
    return all(record[name] in (value if isinstance(value, list) else [value]) for name, value in filters.items())
