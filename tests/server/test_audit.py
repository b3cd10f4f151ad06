"""The audit log over HTTP: every change that somebody makes leaves an entry, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.specs import ConsumerSpec
from headrace.model.watching.audit import Actor
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

SECRET = "s3cr3t-of-push"
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def log(api: Api, **query: Any) -> list[dict[str, Any]]:
    """The entries, the oldest first."""
    return list((await api.get("/audit", **query))["data"])[::-1]


async def actions(api: Api, **query: Any) -> list[str]:
    return [entry["action"] for entry in await log(api, **query)]


async def test_each_change_of_a_stream_and_its_consumer_leaves_an_entry(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1), ("b", 2))
    path = "/streams/orders/consumers/ship"
    await api.call("PATCH", "/streams/orders", {"retain_up_to": 86_400})
    await api.call("PATCH", path, {"max_deliver": 3})
    await api.post(f"{path}/pause")
    await api.post(f"{path}/resume")
    await api.receive()
    await api.post(f"{path}/seek", {"to": 1})
    await api.post("/streams/orders/republish", {"target": "orders"})
    await api.post("/streams/orders/erasures", {"seqs": [1], "reason": "asked for"})
    await api.call("DELETE", path)
    await api.call("DELETE", "/streams/orders")
    assert await actions(api) == [
        "stream.create", "consumer.create", "stream.edit", "consumer.edit", "consumer.pause", "consumer.resume",
        "consumer.seek", "stream.republish", "message.erase", "consumer.delete", "stream.delete",
    ]  # fmt: skip
    seek = (await log(api, action="consumer.seek"))[0]
    assert seek["details"] == {"to": 1, "position": 0}
    assert (seek["stream"], seek["object"], seek["via"]) == ("orders", {"kind": "consumer", "name": "ship"}, "http")
    assert (await log(api, action="consumer.edit"))[0]["details"] == {"changes": {"max_deliver": [10, 3]}}
    assert (await log(api, action="message"))[0]["details"] == {"reason": "asked for", "messages": 1, "seqs": [1]}


async def test_what_changes_nothing_leaves_no_entry(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1))
    before = await log(api)
    path = "/streams/orders/consumers/ship"
    await api.post(f"{path}/replay", {"dry_run": True})
    await api.post(f"{path}/dead_letters/redrive")
    await api.call("PATCH", path, {"max_deliver": (await api.get(path))["max_deliver"]})
    await api.refused("POST", f"{path}/seek", {"to": 99}, status=422)
    await api.refused("POST", "/streams", {"name": "orders"}, status=409)
    await api.refused("DELETE", "/streams/nothing", status=404)
    await api.receive()
    assert await log(api) == before


async def test_an_entry_never_has_a_secret(api: Api) -> None:
    await api.stream()
    push = {"url": f"https://hook.example/{SECRET}", "secret": WHSEC, "headers": {"x-token": SECRET}}
    await api.consumer(push=push)
    await api.call("PATCH", "/streams/orders/consumers/ship", {"push": {"headers": {"x-token": SECRET + "2"}}})
    source = {"name": "shop", "kind": "webhook", "stream": "orders", "signature": "github", "secrets": [SECRET]}
    await api.post("/sources", source, 201)
    await api.call("PATCH", "/sources/shop", {"secrets": [SECRET + "3"]})
    made = await api.post("/tokens", {"name": "ci", "scopes": ["admin"]}, 201)
    api.client.headers["authorization"] = f"Bearer {made['token']}"
    await api.call("DELETE", "/sources/shop")
    entries = await log(api)
    assert [entry["action"] for entry in entries[1:]] == [
        "consumer.create", "consumer.edit", "source.create", "source.edit", "token.create", "source.delete",
    ]  # fmt: skip
    assert SECRET not in str(entries)
    assert WHSEC not in str(entries)
    assert made["token"] not in str(entries)


async def test_a_change_has_the_name_of_its_token(api: Api) -> None:
    made = await api.post("/tokens", {"name": "ci", "scopes": ["admin"]}, 201)
    api.client.headers["authorization"] = f"Bearer {made['token']}"
    await api.stream()
    await api.consumer()
    assert [(one["actor"], one["via"]) for one in await log(api)] == [(None, "http"), ("ci", "http"), ("ci", "http")]
    assert await actions(api, actor="ci", stream="orders") == ["stream.create", "consumer.create"]


async def test_a_token_of_one_stream_sees_the_changes_of_that_stream_only(api: Api) -> None:
    await api.stream("orders")
    await api.stream("bills")
    root = (await api.post("/tokens", {"name": "root", "scopes": ["admin"]}, 201))["token"]
    api.client.headers["authorization"] = f"Bearer {root}"
    tokens = {
        scope: (await api.post("/tokens", {"name": scope.replace(":", "-"), "scopes": [scope]}, 201))["token"]
        for scope in ("admin:orders", "consume")
    }
    api.client.headers["authorization"] = f"Bearer {tokens['admin:orders']}"
    assert [one["object"]["name"] for one in await log(api)] == ["orders"]
    assert await log(api, stream="bills") == []
    api.client.headers["authorization"] = f"Bearer {tokens['consume']}"
    await api.refused("GET", "/audit", status=403)


async def test_the_list_is_read_in_pages(api: Api) -> None:
    for number in range(5):
        await api.stream(f"s{number}")
    first = await api.get("/audit", limit=2)
    second = await api.get("/audit", limit=2, after=first["next"])
    assert [one["object"]["name"] for one in [*first["data"], *second["data"]]] == ["s4", "s3", "s2", "s1"]
    back = await api.get("/audit", limit=2, before=second["prev"])
    assert back["data"] == first["data"]


async def test_code_leaves_entries_too(api: Api) -> None:
    admin = api.server.app.admin
    await admin.create_stream("orders")
    await admin.acting_as(Actor("nightly", "app")).create_consumer(ConsumerSpec(stream="orders", name="ship"))
    assert [(one["actor"], one["via"]) for one in await log(api)] == [(None, "app"), ("nightly", "app")]


async def test_a_message_that_is_published_by_hand_leaves_an_entry_without_its_contents(api: Api) -> None:
    await api.stream()
    body = '{"key": "a.s3cr3t", "data": {"total": 1.50}, "headers": {"by": "hand"}}'
    answer = await api.client.post(
        "/v1/streams/orders/publish", content=body, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()) == (200, {"data": {"seq": 1}})
    assert await api.server.app.database.fetchval("select data::text from headrace_streams.orders") == '{"total": 1.50}'
    (entry,) = await log(api, action="message.publish")
    assert (entry["details"], entry["stream"]) == ({"seqs": [1]}, "orders")
    assert "s3cr3t" not in str(entry)
    await api.refused("POST", "/streams/orders/publish", {"key": "", "data": 1}, status=422)
    assert await actions(api) == ["stream.create", "message.publish"]
