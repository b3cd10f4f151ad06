"""Under `/api`, every field that an answer has is accepted in a request: an object is created, and changed, with what GET
answered, whatever its settings are.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.calling import Api
from tests.server.test_contract_consumers import _TOLD
from tests.server.test_contract_older_names import _MEANS

pytestmark = pytest.mark.asyncio

OWN = {"id", "name", "inserted_at", "updated_at", "info"}
"""What a copy has for itself."""

PUSH = {
    "url": "https://example.com/hook",
    "headers": {"x-a": "b"},
    "timeout_ms": 5000,
    "batch_size": 10,
    "shape": "message",
}
STREAMS: list[dict[str, Any]] = [{}, *(sent for sent, _ in _MEANS)]
CONSUMERS: list[dict[str, Any]] = [
    {}, *(sent for sent, _ in _TOLD), {"kind": "push", "push": PUSH}, {"kind": "push", "url": "https://example.com/x"},
    {"backoff": {"base": 3, "limit": 60, "delays": []}},
]  # fmt: skip
RECORDS: list[dict[str, Any]] = [
    {}, {"filters": {"collection_id": "x", "resource_id": "*"}}, {"filters": {"n": [1, 2], "s": None}}, {"where": "data.n > 1"},
    {"max_deliver": -1, "ack_wait_ms": 1500}, {"kind": "push", "push": PUSH},
]  # fmt: skip


async def _answer(api: Api, method: str, path: str, body: Any = None) -> Any:
    answer = await api.client.request(method, f"/api{path}", **({} if body is None else {"json": body}))
    assert answer.status_code == 200, (method, path, body, answer.text)
    return answer.json()


def _differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {field for field in one.keys() | other.keys() if one.get(field) != other.get(field)}


async def _check(api: Api, path: str, settings: dict[str, Any], name: str) -> None:
    """Create an object, create another one with what GET answers, change both with it, and create one with each field."""
    await _answer(api, "POST", path, {"name": name, **settings})
    found = await _answer(api, "GET", f"{path}/{name}")
    copy = await _answer(api, "POST", path, {**found, "name": f"{name}-copy"})
    assert _differing(found, copy) <= OWN, settings
    for method in ("PUT", "PATCH"):
        changed = await _answer(api, method, f"{path}/{name}", found)
        assert _differing(found, changed) <= OWN, settings
    await _answer(api, "DELETE", f"{path}/{name}-copy")


@pytest.mark.parametrize("number", range(len(STREAMS)))
async def test_a_stream_is_created_with_what_get_answered(api: Api, number: int) -> None:
    await _check(api, "/streams", STREAMS[number], f"s{number}")


@pytest.mark.parametrize("part", range(3))
async def test_a_consumer_is_created_with_what_get_answered(api: Api, part: int) -> None:
    await api.stream()
    for number, settings in list(enumerate(CONSUMERS))[part::3]:
        await _check(api, "/streams/orders/consumers", settings, f"c{number}")


async def test_a_consumer_of_the_consume_api_is_created_with_what_get_answered(api: Api) -> None:
    await api.stream()
    for number, settings in enumerate(RECORDS):
        await _check(api, "/http-consumers", settings, f"c{number}")


async def test_each_field_of_an_answer_is_accepted_alone(api: Api) -> None:
    """Every alias of every generation, also those that today's API does not take."""
    await api.stream()
    settings: dict[str, dict[str, Any]] = {
        "/streams": {"one_message_per_key": True, "retain_up_to": 60, "max_storage": 2 * 10**9, "dedupe": True},
        "/streams/orders/consumers": {
            "filter": "a.>",
            "where": "data.n > 1",
            "ack_wait": 2,
            "backoff_ms": [1000, 2000],
        },
        "/http-consumers": {"stream": "orders", "filters": {"n": 1, "m": "*"}, "max_deliver": -1},
    }
    for path, sent in settings.items():
        found = await _answer(api, "POST", path, {"name": "whole", **sent})
        needed = {"one_message_per_key": True} if path == "/streams" else {}
        needed |= {"stream": "orders"} if path == "/http-consumers" else {}
        for number, (field, value) in enumerate(found.items()):
            name = f"{path.rpartition('/')[2][:4]}-{number}"
            created = await _answer(
                api, "POST", path, {"name": name, **needed, **({} if field == "name" else {field: value})}
            )
            if field not in OWN | {"stats"}:
                assert created[field] == value, (path, field)
        await _answer(api, "DELETE", f"{path}/whole")


@pytest.mark.parametrize(
    "path", ["/streams/orders/consumers/ship", "/http_pull_consumers/ship", "/http-consumers/ship"]
)
async def test_messages_are_settled_by_either_name_of_their_ids(api: Api, path: str) -> None:
    await api.stream()
    await _answer(api, "POST", "/streams/orders/consumers", {"name": "ship"})
    await api.publish(*(("k" + str(number), number) for number in range(4)))
    receive = "next" if "http-consumers" in path else "receive"
    for verb in ("nack", "ack"):
        for field in ("ack_ids", "ack_tokens"):
            (received,) = (await _answer(api, "GET", f"{path}/{receive}?batch_size=1"))["data"]
            token = received.get("ack_id") or received["ack_token"]
            assert await _answer(api, "POST", f"{path}/{verb}", {field: [token]}) == {"success": True}


async def test_new_filters_replace_those_of_an_answer_that_is_sent_back(api: Api) -> None:
    await api.stream()
    await _answer(api, "POST", "/http-consumers", {"name": "c", "filters": {"n": 1}})
    found = await _answer(api, "GET", "/http-consumers/c")
    changed = await _answer(api, "PUT", "/http-consumers/c", {**found, "filters": {"n": 2}})
    assert (changed["filters"], changed["where"]) == ({"n": 2}, "data.n = 2")
    both = await _answer(api, "PUT", "/http-consumers/c", {"where": "data.m = 3", "filters": {"n": 2}})
    assert both["where"] == "data.m = 3 and data.n = 2"
