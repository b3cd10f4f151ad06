"""The contract's rows about streams."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_SETTINGS = {
    "retention": "limits",
    "retain_up_to": 86400.0,
    "retain_at_least": 60.0,
    "max_storage": 50_000_000,
    "one_message_per_key": True,
    "dedupe": True,
    "tombstones": True,
    "dedupe_window": 30.0,
}


async def test_a_stream_is_made_with_its_settings_and_returned_with_its_stats(api: Api) -> None:
    created = await api.post("/streams", {"name": "mystream", **_SETTINGS}, 201)
    assert {name: created[name] for name in _SETTINGS} == _SETTINGS
    assert created["name"] == "mystream"
    assert created["stats"]["message_count"] == 0
    assert created["stats"]["consumer_count"] == 0
    assert created["stats"]["storage_size"] > 0
    assert created["inserted_at"] == created["updated_at"]
    assert created["info"]["id"] == created["id"]
    assert await api.get("/streams/mystream") == created


async def test_durations_of_a_stream_may_be_text(api: Api) -> None:
    created = await api.stream(retain_up_to="30d", dedupe_window="5m")
    assert (created["retain_up_to"], created["dedupe_window"]) == (2_592_000, 300)


async def test_one_of_several_concurrent_creations_made_the_stream(api: Api) -> None:
    answers = await asyncio.gather(*(api.answer("POST", "/streams", {"name": "orders"}) for _ in range(8)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses[0] in (200, 201), "200 is that of /api"
    assert statuses[1:] == [409] * 7


async def test_a_stream_that_exists_is_refused_with_409(api: Api) -> None:
    await api.stream("orders")
    answer = await api.refused("POST", "/streams", {"name": "orders"}, status=409)
    assert answer["code"] == "exists"


async def test_streams_are_listed_by_name(api: Api) -> None:
    assert await api.get("/streams") == {"data": []}
    await api.stream("zebras")
    await api.stream("ants")
    assert [one["name"] for one in (await api.get("/streams"))["data"]] == ["ants", "zebras"]


async def test_the_stats_count_messages_and_consumers(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1), ("b", 2))
    stats = (await api.get("/streams/orders"))["stats"]
    assert (stats["message_count"], stats["consumer_count"]) == (2, 1)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_stream_is_changed_and_what_is_left_out_stays(api: Api, method: str) -> None:
    created = await api.stream(retain_up_to="30d", max_storage=50_000_000)
    changed = await api.call(method, "/streams/orders", {"retain_up_to": None, "name": "orders"})
    assert (changed["retain_up_to"], changed["max_storage"]) == (None, 50_000_000)
    assert changed["id"] == created["id"]
    assert (await api.get("/streams/orders"))["retain_up_to"] is None


async def test_a_streams_name_can_not_be_changed(api: Api) -> None:
    await api.stream()
    answer = await api.refused("PATCH", "/streams/orders", {"name": "others"}, status=422)
    assert "name" in answer["validation_errors"]


async def test_a_stream_is_deleted(api: Api) -> None:
    created = await api.stream()
    assert await api.call("DELETE", "/streams/orders") == {"id": created["id"], "deleted": True}
    await api.refused("GET", "/streams/orders", status=404)
    assert await api.get("/streams") == {"data": []}


async def test_a_streams_id_does_wherever_its_name_does(api: Api) -> None:
    created = await api.stream()
    uid = created["id"]
    await api.post(f"/streams/{uid}/messages", {"key": "a", "data": 1})
    await api.post(f"/streams/{uid}/consumers", {"name": "ship"}, 201)
    assert (await api.get(f"/streams/{uid}"))["name"] == "orders"
    assert (await api.get(f"/streams/{uid}/messages"))["data"][0]["stream_id"] == uid
    assert (await api.get(f"/streams/{uid}/messages/a"))["data"] == 1
    assert [one["name"] for one in (await api.get(f"/streams/{uid}/consumers"))["data"]] == ["ship"]
    assert (await api.call("PATCH", f"/streams/{uid}", {"retain_up_to": 60}))["retain_up_to"] == 60
    assert (await api.call("DELETE", f"/streams/{uid}"))["id"] == uid


async def test_an_unknown_stream_is_404_everywhere(api: Api) -> None:
    for method, path, body in (
        ("GET", "/streams/none", None),
        ("PATCH", "/streams/none", {}),
        ("DELETE", "/streams/none", None),
        ("GET", "/streams/none/messages", None),
        ("POST", "/streams/none/messages", {"key": "a", "data": 1}),
        ("GET", "/streams/none/messages/a", None),
        ("GET", "/streams/none/messages/a/consumer_info", None),
        ("POST", "/streams/none/consumers", {"name": "ship"}),
        ("GET", "/streams/none/consumers", None),
    ):
        answer = await api.refused(method, path, body, status=404)
        assert answer["code"] == "unknown_stream"
        assert "'none'" in answer["summary"]


async def test_settings_that_contradict_each_other_are_422(api: Api) -> None:
    answer = await api.refused("POST", "/streams", {"name": "x", "dedupe": True}, status=422)
    assert "one_message_per_key" in answer["summary"]
    answer = await api.refused("POST", "/streams", {"name": "No Such Name"}, status=422)
    assert "lower-case" in answer["summary"]
    assert await api.get("/streams") == {"data": []}


async def test_an_unknown_field_is_422_and_says_which_there_are(api: Api) -> None:
    answer = await api.refused("POST", "/streams", {"name": "x", "retain": "1d"}, status=422)
    assert list(answer["validation_errors"]) == ["retain"]
    assert "retain_up_to" in answer["validation_errors"]["retain"][0]
