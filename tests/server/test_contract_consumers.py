"""The contract's rows about consumers: every setting, under each of its names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_PATH = "/streams/orders/consumers"


async def test_a_consumer_is_made_with_defaults(api: Api) -> None:
    stream = await api.stream()
    created = await api.post(_PATH, {"name": "ship"}, 201)
    answer = {
        "name": "ship", "stream": "orders", "stream_id": stream["id"], "kind": "pull", "status": "active", "filter": ">",
        "filters": [">"], "filter_key_pattern": ">", "where": None, "ack_wait_ms": 30000, "max_ack_pending": 1000,
        "max_deliver": 10, "max_waiting": 20, "deliver_policy": "all", "on_exhausted": "dead_letter", "ordered": True,
        "backoff_ms": None, "rate_limit": None, "push": None, "url": None,
    }  # fmt: skip
    assert {name: created[name] for name in answer} == answer
    assert created["backoff"] == {"delays": [], "base": 1.0, "factor": 2.0, "limit": 300.0, "jitter": 0.5}
    assert created["inserted_at"] == created["updated_at"]
    assert created["info"]["id"] == created["id"]
    assert (await api.get(f"{_PATH}/ship"))["id"] == created["id"]


_TOLD: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"filter": "a.>"}, {"filter": "a.>", "filters": ["a.>"], "filter_key_pattern": "a.>"}),
        ({"filter_key_pattern": "a.*"}, {"filter": "a.*", "filter_key_pattern": "a.*"}),
        ({"filters": ["a.>", "b"]}, {"filter": ["a.>", "b"], "filters": ["a.>", "b"]}),
        ({"filter": "a", "filters": ["a"]}, {"filter": "a"}),
        ({"filters": {"status": "paid"}}, {"filter": ">", "where": "data.status = 'paid'"}),
        ({"where": "data.n > 1"}, {"where": "data.n > 1"}),
        ({"where": {"field": "data.n", "op": ">", "value": 1}}, {"where": "data.n > 1"}),
        ({"where": "data.n > 1", "filters": {"s": "x"}}, {"where": "data.n > 1 and data.s = 'x'"}),
        ({"ack_wait_ms": 1500}, {"ack_wait_ms": 1500}),
        ({"ack_wait": "1m"}, {"ack_wait_ms": 60000, "ack_wait": 60}),
        ({"ack_wait": 2, "ack_wait_ms": 2000}, {"ack_wait_ms": 2000}),
        ({"max_ack_pending": 7, "max_deliver": -1, "max_waiting": 3}, {"max_ack_pending": 7, "max_deliver": -1, "max_waiting": 3}),
        ({"backoff_ms": 2500}, {"backoff_ms": 2500}),
        ({"backoff_ms": [1000, 5000]}, {"backoff_ms": [1000, 5000]}),
        ({"backoff": "5s"}, {"backoff_ms": 5000}),
        ({"backoff": ["1s", 10]}, {"backoff_ms": [1000, 10000]}),
        ({"backoff": {"base": 3, "limit": 60}}, {"backoff_ms": None}),
        ({"backoff_ms": None}, {"backoff_ms": None}),
        ({"on_exhausted": "block"}, {"on_exhausted": "block"}),
        ({"ordered": False}, {"ordered": False}),
        ({"rate_limit": "600/m", "rate_burst": 5}, {"rate_limit": 10, "rate_burst": 5}),
        ({"history": "7d"}, {"history": 604800}),
        ({"kind": "pull"}, {"kind": "pull"}),
        ({"deliver_policy": "new"}, {"deliver_policy": "new"}),
        ({"deliver_policy": "by_start_seq", "start_seq": 1}, {"deliver_policy": "by_start_seq", "start_seq": 1}),
        ({"deliver_policy": "by_start_time", "start_time": "2020-01-01T00:00:00Z"}, {"start_time": "2020-01-01T00:00:00Z"}),
        ({"deliver_policy": "last_per_key"}, {"deliver_policy": "last_per_key"}),
]  # fmt: skip


async def test_every_setting_is_accepted_and_returned(api: Api) -> None:
    await api.stream()
    for number, (given, answer) in enumerate(_TOLD):
        created = await api.post(_PATH, {"name": f"c{number}", **given}, 201)
        found = await api.get(f"{_PATH}/c{number}")
        assert {name: created[name] for name in answer} == answer, given
        assert {name: found[name] for name in answer} == answer, given


async def test_filters_have_the_same_form_when_made_and_when_read(api: Api) -> None:
    await api.stream()
    created = await api.post(_PATH, {"name": "ship", "filters": {"status": "paid", "n": "*"}}, 201)
    assert (created["filters"], created["where"]) == ([">"], "data.status = 'paid'")
    assert await api.get(f"{_PATH}/ship") == created
    changed = await api.call("PATCH", f"{_PATH}/ship", {"filters": {"status": "open"}, "filter": "a.>"})
    assert (changed["filters"], changed["where"]) == (["a.>"], "data.status = 'open'")
    assert await api.get(f"{_PATH}/ship") == changed


async def test_a_push_consumer_is_made_by_push_or_by_url(api: Api) -> None:
    await api.stream()
    push = {
        "url": "https://example.com/hook", "headers": {"x-a": "b"}, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "timeout_ms": 5000, "batch_size": 10, "concurrency": [2, 8], "shape": "change",
    }  # fmt: skip
    created = await api.post(_PATH, {"name": "full", "kind": "push", "push": push}, 201)
    assert created["kind"] == "push"
    assert created["push"] == {**push, "secret": "…"}
    assert created["url"] == push["url"]
    created = await api.post(_PATH, {"name": "short", "kind": "push", "url": "https://example.com/x"}, 201)
    assert (created["push"]["url"], created["push"]["secret"]) == ("https://example.com/x", None)
    changed = await api.call("PATCH", f"{_PATH}/full", {"push": {"timeout_ms": 7000, "secret": "…"}})
    assert changed["push"] == {**push, "secret": "…", "timeout_ms": 7000}
    assert (await api.call("PATCH", f"{_PATH}/full", {"kind": "pull"}))["push"] is None


_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "colour"),
    ({"filter": "a", "filters": ["b"]}, "filter"),
    ({"ack_wait": 1, "ack_wait_ms": 2000}, "ack_wait"),
    ({"kind": "push"}, "push"),
    ({"kind": "pull", "url": "https://example.com"}, "kind"),
    ({"push": {"url": "https://example.com", "speed": 1}}, "push.speed"),
    ({"max_ack_pending": "many"}, "max_ack_pending"),
    ({"on_exhausted": "explode"}, "on_exhausted"),
]


async def test_an_invalid_setting_is_422_with_the_name_of_the_field(api: Api) -> None:
    await api.stream()
    for given, field in _REFUSED:
        answer = await api.refused("POST", _PATH, {"name": "ship", **given}, status=422)
        assert list(answer["validation_errors"]) == [field]
    assert await api.get(_PATH) == {"data": []}


_IMPOSSIBLE: list[dict[str, Any]] = [
        {"filter": "a..b"}, {"filters": []}, {"where": "data.n >"}, {"filters": {"a": {"b": 1}}}, {"ack_wait_ms": 1},
        {"max_deliver": 0}, {"backoff_ms": -1}, {"deliver_policy": "by_start_seq"}, {"start_seq": 5}, {"rate_burst": 5},
        {"rate_limit": "fast"}, {"url": "ftp://example.com"}, {"backoff": {"jitter": 7}},
]  # fmt: skip


async def test_settings_that_can_not_be_are_422(api: Api) -> None:
    await api.stream()
    for given in _IMPOSSIBLE:
        await api.refused("POST", _PATH, {"name": "ship", **given}, status=422)
    assert await api.get(_PATH) == {"data": []}


async def test_an_unknown_field_says_which_there_are(api: Api) -> None:
    await api.stream()
    answer = await api.refused("POST", _PATH, {"name": "ship", "max_pending": 1}, status=422)
    assert "max_ack_pending" in answer["validation_errors"]["max_pending"][0]


async def test_a_consumer_that_exists_is_409_even_with_the_same_settings(api: Api) -> None:
    await api.stream()
    await api.consumer(max_deliver=3)
    for settings in ({"max_deliver": 3}, {"max_deliver": 4}):
        assert (await api.refused("POST", _PATH, {"name": "ship", **settings}, status=409))["code"] == "exists"
    assert (await api.get(f"{_PATH}/ship"))["max_deliver"] == 3


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_consumer_is_changed_and_what_is_left_out_stays(api: Api, method: str) -> None:
    await api.stream()
    await api.consumer(filter="a.>", max_deliver=3)
    changed = await api.call(method, f"{_PATH}/ship", {"name": "ship", "deliver_policy": "all", "ack_wait_ms": 5000})
    assert (changed["ack_wait_ms"], changed["max_deliver"], changed["filter"]) == (5000, 3, "a.>")
    changed = await api.call(method, f"{_PATH}/ship", {"filter": ["b", "c"], "where": "data.n = 1", "backoff_ms": 10})
    assert (changed["filters"], changed["where"], changed["backoff_ms"]) == (["b", "c"], "data.n = 1", 10)
    changed = await api.call(method, f"{_PATH}/ship", {"where": None, "rate_limit": 5, "backoff_ms": None})
    assert (changed["where"], changed["rate_limit"], changed["backoff_ms"]) == (None, 5, None)
    assert await api.get(f"{_PATH}/ship") == changed


async def test_the_start_position_of_a_consumer_cannot_be_changed(api: Api) -> None:
    await api.stream()
    await api.consumer()
    answer = await api.refused("PATCH", f"{_PATH}/ship", {"deliver_policy": "new"}, status=422)
    assert "deliver_policy" in answer["summary"]


async def test_consumers_are_listed_for_a_stream_and_for_all(api: Api) -> None:
    await api.stream()
    await api.stream("others")
    await api.consumer("zoe")
    await api.consumer("ann")
    await api.consumer("eve", "others")
    assert [one["name"] for one in (await api.get(_PATH))["data"]] == ["ann", "zoe"]
    assert [(one["stream"], one["name"]) for one in (await api.get("/consumers"))["data"]] == [
        ("orders", "ann"),
        ("orders", "zoe"),
        ("others", "eve"),
    ]


async def test_a_consumer_is_deleted(api: Api) -> None:
    await api.stream()
    created = await api.consumer()
    assert await api.call("DELETE", f"{_PATH}/ship") == {"id": created["id"], "deleted": True}
    assert (await api.refused("GET", f"{_PATH}/ship", status=404))["code"] == "unknown_consumer"
    assert (await api.refused("POST", f"{_PATH}/ship/receive", status=404))["code"] == "unknown_consumer"


@pytest.mark.parametrize("query", [{}, {"force": "true"}])
async def test_a_consumer_in_use_is_deleted_unless_force_is_false(api: Api, query: dict[str, str]) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1))
    await api.receive()
    for path in (f"{_PATH}/ship", "/http-consumers/ship", "/streams/orders"):
        assert (await api.refused("DELETE", path, status=409, force="false"))["code"] == "in_use"
    assert (await api.call("DELETE", f"{_PATH}/ship", **query))["deleted"] is True
    await api.consumer("other")
    await api.receive("other")
    assert (await api.call("DELETE", "/http-consumers/other", **query))["deleted"] is True
    await api.consumer("last")
    await api.receive("last")
    assert (await api.call("DELETE", "/streams/orders", **query))["deleted"] is True


async def test_a_consumers_id_does_wherever_its_name_does(api: Api) -> None:
    stream = await api.stream()
    created = await api.consumer()
    path = f"/streams/{stream['id']}/consumers/{created['id']}"
    await api.publish(("a", 1), ("b", 2))
    (first,) = (await api.get(f"{path}/receive"))["data"]
    assert await api.post(f"{path}/extend", {"ack_ids": [first["ack_id"]]}) == {"success": True}
    assert await api.post(f"{path}/ack", {"ack_ids": [first["ack_id"]]}) == {"success": True}
    for verb, body in (("pause", None), ("resume", None), ("seek", {"to": "start"}), ("replay", {}), ("messages", {})):
        await api.post(f"{path}/{verb}", body)
    for what in ("messages", "dead_letters", "blocked_keys"):
        await api.get(f"{path}/{what}")
    assert (await api.get(path))["name"] == "ship"
    assert (await api.call("PATCH", path, {"max_deliver": 2}))["max_deliver"] == 2
    assert (await api.call("DELETE", path, force="true"))["id"] == created["id"]


async def test_a_consumers_name_may_be_any_text(api: Api) -> None:
    await api.stream()
    created = await api.consumer("a/b é")
    assert (await api.get(f"{_PATH}/a%2Fb%20%C3%A9"))["id"] == created["id"]
    await api.refused("POST", _PATH, {"name": ""}, status=422)
    await api.refused("POST", _PATH, {"name": "a\x00b"}, status=422)
