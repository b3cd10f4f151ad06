"""Older names of settings, and numbers in requests that are out of range."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.settings import settings_of
from headrace.model.specs import StreamSpec
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_COMPACTED = {"one_message_per_key": True}
_MEANS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"max_storage_gb": None, "process_unmodified": True}),
    ({"max_storage_gb": 1}, {"max_storage": 10**9, "max_storage_gb": 1}),
    ({"max_storage_gb": 0.05}, {"max_storage": 50_000_000, "max_storage_gb": 0.05}),
    ({"max_storage_gb": None}, {"max_storage": None, "max_storage_gb": None}),
    ({"max_storage": 2 * 10**9}, {"max_storage_gb": 2}),
    ({**_COMPACTED, "process_unmodified": False}, {"dedupe": True, "process_unmodified": False}),
    ({**_COMPACTED, "process_unmodified": True}, {"dedupe": False, "process_unmodified": True}),
    ({**_COMPACTED, "dedupe": True}, {"dedupe": True, "process_unmodified": False}),
    ({"process_unmodified": False}, {"dedupe": False, "process_unmodified": True}),
    ({"process_unmodified": True}, {"dedupe": False, "process_unmodified": True}),
]


async def test_older_names_mean_what_the_settings_mean(api: Api) -> None:
    for number, (sent, told) in enumerate(_MEANS):
        created = await api.stream(f"s{number}", **sent)
        assert {name: created[name] for name in told} == told, sent
        assert await api.get(f"/streams/s{number}") == created


async def test_settings_are_changed_by_their_older_names(api: Api) -> None:
    await api.stream("compacted", **_COMPACTED)
    await api.stream("plain")
    for method in ("PATCH", "PUT"):
        changed = await api.call(method, "/streams/compacted", {"process_unmodified": False, "max_storage_gb": 3})
        assert (changed["dedupe"], changed["max_storage"]) == (True, 3 * 10**9)
        changed = await api.call(method, "/streams/compacted", {"process_unmodified": True, "max_storage_gb": None})
        assert (changed["dedupe"], changed["max_storage"]) == (False, None)
        changed = await api.call(method, "/streams/plain", {"process_unmodified": False})
        assert (changed["dedupe"], changed["process_unmodified"]) == (False, True)


_BOTH: list[tuple[dict[str, Any], str]] = [
    ({"max_storage_gb": 1, "max_storage": 2 * 10**9}, "max_storage_gb"),
    ({"max_storage_gb": None, "max_storage": 10**9}, "max_storage_gb"),
    ({**_COMPACTED, "process_unmodified": False, "dedupe": False}, "process_unmodified"),
    ({**_COMPACTED, "process_unmodified": True, "dedupe": True}, "process_unmodified"),
]


async def test_a_setting_and_its_older_name_say_the_same(api: Api) -> None:
    for sent, field in _BOTH:
        answer = await api.refused("POST", "/streams", {"name": "s", **sent}, status=422)
        assert "it is the older name of" in answer["validation_errors"][field][0], sent
        assert "give one of them" in answer["summary"], sent
    assert await api.get("/streams") == {"data": []}


_INVALID = [
    *({"max_storage_gb": value} for value in (0, -1, "much", 1e-9, 1e300, -1e300, "nan", "inf", "-inf", [])),
    *({**_COMPACTED, "process_unmodified": value} for value in ("perhaps", None, 3)),
]


async def test_invalid_values_of_older_names_are_422(api: Api) -> None:
    for sent in _INVALID:
        await api.refused("POST", "/streams", {"name": "s", **sent}, status=422)
        assert await api.get("/streams") == {"data": []}, sent


async def test_the_description_has_the_older_names(api: Api) -> None:
    schemas = (await api.client.get("/openapi.json")).json()["components"]["schemas"]
    for schema in ("NewStream", "StreamSettings", "Stream"):
        properties = schemas[schema]["properties"]
        for setting in settings_of(StreamSpec).values():
            if setting.older is not None:
                assert properties[setting.older.name]["description"].startswith("For older clients. ")


_OUT_OF_RANGE: list[str] = ["-1", "0", "1001", "1.5", "x", "", "1 ", "９", "-99999999999"]


async def test_a_batch_size_out_of_range_is_told_the_range(api: Api) -> None:
    await api.stream()
    await api.consumer()
    paths = ["/streams/orders/consumers/ship/receive", "/http_pull_consumers/ship/receive", "/http-consumers/ship/next"]
    for batch_size in _OUT_OF_RANGE:
        for path in paths:
            answer = await api.refused("GET", path, status=422, batch_size=batch_size)
            assert answer["validation_errors"] == {
                "batch_size": ["Give a whole number that is at least 1 and at most 1,000."]
            }
        if batch_size in ("-1", "0", "1001"):
            answer = await api.refused("POST", paths[0], {"batch_size": int(batch_size)}, status=422)
            assert "at least 1" in answer["summary"]


async def test_a_list_of_another_size_than_may_be_is_told_the_range(api: Api) -> None:
    await api.stream()
    for limit in ("-1", "0", "1000000"):
        answer = await api.refused("GET", "/streams/orders/messages", status=422, limit=limit)
        assert "limit" in answer["validation_errors"]
        assert ("1" if int(limit) < 1 else "10000") in answer["summary"]
