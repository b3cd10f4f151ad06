"""One request publishes to several streams, all or none."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.server.calling import Api
from tests.support.waiting import until, until_blocked

pytestmark = pytest.mark.asyncio


async def _keys(api: Api, stream: str) -> list[str]:
    listed = await api.get(f"/streams/{stream}/messages", limit=100)
    return [one["key"] for one in listed["data"]]


def _of(stream: str, key: str, data: Any = 1, **options: Any) -> dict[str, Any]:
    return {"stream": stream, "key": key, "data": data, **options}


async def _publish(api: Api, *messages: dict[str, Any]) -> Any:
    return (await api.post("/messages", {"messages": messages}))["data"]["published"]


async def test_messages_go_to_the_streams_that_they_name_in_their_order(api: Api) -> None:
    orders = (await api.stream("orders"))["id"]
    await api.stream("mails")
    sent = [
        _of("mails", "m1"),
        _of("orders", "o1"),
        _of(orders, "o2"),
        _of("orders", "o3", headers={"a": "b"}),
        _of("mails", "m2"),
    ]
    assert await _publish(api, *sent) == 5
    assert await _keys(api, "orders") == ["o1", "o2", "o3"]
    assert await _keys(api, "mails") == ["m1", "m2"]
    last = (await api.get("/streams/orders/messages", limit=1, sort="seq_desc"))["data"][0]
    assert (last["data"], last["headers"]) == (1, {"a": "b"})


async def test_messages_have_their_own_options(api: Api) -> None:
    await api.stream("orders")
    await api.stream("mails")
    sent = [
        _of("orders", "o", message_id="1"),
        _of("mails", "m", unique_key="u"),
        _of("mails", "later", delay_ms=3_600_000),
    ]
    assert await _publish(api, *sent) == 3
    assert await _publish(api, *sent, _of("orders", "new")) == 2  # the scheduled one and the new one
    assert (await _keys(api, "orders"), await _keys(api, "mails")) == (["o", "new"], ["m"])


async def test_all_messages_are_published_or_none(api: Api) -> None:
    await api.stream("orders")
    await api.stream("mails")
    await api.server.app.database.fetch("alter table headrace_streams.mails add check (key <> 'bad')")
    await api.refused("POST", "/messages", {"messages": [_of("orders", "o"), _of("mails", "bad")]}, status=500)
    assert await _keys(api, "orders") == await _keys(api, "mails") == []


@pytest.mark.parametrize(
    ("message", "status", "field"),
    [
        (_of("none", "k"), 404, "stream"),
        (_of("orders", "a..b"), 422, "key"),
        (_of("orders", "k", "\0"), 422, "data"),
        (_of("orders", "k", headers=[1]), 422, "headers"),
        (_of("orders", "k", delay_ms=-1), 422, "delay_ms"),
        ({"key": "k", "data": 1}, 422, "stream"),
        ({"stream": "orders", "data": 1}, 422, "key"),
        (_of("orders", "k", odd=1), 422, "odd"),
    ],
)
async def test_an_error_names_the_message(api: Api, message: dict[str, Any], status: int, field: str) -> None:
    await api.stream("orders")
    good = [_of("orders", "a"), _of("orders", "b")]
    answer = await api.refused("POST", "/messages", {"messages": [*good, message]}, status=status)
    assert list(answer["validation_errors"]) == [f"messages[2].{field}"]
    assert await _keys(api, "orders") == []


async def test_a_request_has_one_message_at_least_and_no_more_than_10_000(api: Api) -> None:
    await api.stream("orders")
    for count in (0, 10_001):
        body = {"messages": [_of("orders", "a")] * count}
        assert list((await api.refused("POST", "/messages", body, status=422))["validation_errors"]) == ["messages"]
    for body in ({}, _of("orders", "a"), {"messages": None}):
        await api.refused("POST", "/messages", body, status=422)
    await api.refused("POST", "/messages", {"messages": [_of("orders", "a", "x" * 2_000_000)]}, status=413)
    assert await _keys(api, "orders") == []


async def test_a_token_needs_the_scope_for_each_stream(api: Api) -> None:
    await api.stream("orders")
    await api.stream("mails")
    root = (await api.post("/tokens", {"name": "root", "scopes": ["admin"]}, 201))["token"]
    headers = {"authorization": f"Bearer {root}"}
    body = {"name": "ci", "scopes": ["publish:orders", "consume:mails"]}
    token = (await api.client.post("/v1/tokens", json=body, headers=headers)).json()["token"]

    async def publish(*streams: str) -> tuple[int, Any]:
        answer = await api.client.post(
            "/v1/messages",
            json={"messages": [_of(stream, "k") for stream in streams]},
            headers={"authorization": f"Bearer {token}"},
        )
        return answer.status_code, list(answer.json().get("validation_errors", {}))

    assert await publish("orders", "orders") == (200, [])
    for other in ("mails", "none"):  # it learns nothing about others
        assert await publish("orders", other) == (403, [])
    stored = await api.server.app.database.fetch("select key from headrace_streams.mails")
    assert list(stored) == []


async def test_those_who_wait_for_messages_of_these_streams_are_woken(api: Api) -> None:
    for stream in ("orders", "mails"):
        await api.stream(stream)
        await api.consumer(stream=stream)
    waiting = [asyncio.create_task(api.receive(stream=stream, wait_for="60s")) for stream in ("orders", "mails")]
    await until(lambda: api.server.engine.statistics()["waiting"] == 2)
    assert await _publish(api, _of("mails", "m"), _of("orders", "o")) == 2
    async with asyncio.timeout(20):
        assert [[one["message"]["key"] for one in await each] for each in waiting] == [["o"], ["m"]]
    assert api.server.engine.counts.published == 2


async def test_requests_take_their_streams_in_one_order(api: Api, dsn: str) -> None:
    for stream in ("orders", "mails"):
        await api.stream(stream, one_message_per_key=True)
    other = await asyncpg.connect(dsn)
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.fetch("select headrace.publish('orders', 'k', '1')")
        # It names the other stream first, and must not have a lock there while it waits.
        waiting = asyncio.create_task(_publish(api, _of("mails", "k"), _of("orders", "k")))
        await until_blocked(api.server.app.database, other)
        await other.fetch("select headrace.publish('mails', 'k', '1')")
        await transaction.commit()
        assert await waiting == 2
    finally:
        await other.close()


async def test_the_order_of_the_names_of_one_stream_is_kept(api: Api) -> None:
    id_ = (await api.stream("orders"))["id"]
    await _publish(api, *(_of(("orders", id_)[number % 2], f"k{number}") for number in range(10)))
    assert await _keys(api, "orders") == [f"k{number}" for number in range(10)]
