"""One tenant at full speed, and another that must not notice. It is judged by counts, not by times: the figures are
those of `python -m benchmarks tenants`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import pytest

from tests.server.calling import Api

Ask = Callable[..., Awaitable[httpx.Response]]


def caller(api: Api, token: str) -> Ask:
    """Return a function that sends requests with a token."""

    async def ask(method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        content = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        return await api.client.request(method, f"/v1{path}", content=content, params=query or None, headers=headers)

    return ask


async def again_and_again(ask: Ask, *request: Any, **query: Any) -> None:
    while True:
        await ask(*request, **query)
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_hostile_tenant_refuses_nothing_to_another(api: Api) -> None:
    await api.stream("hostile")
    await api.stream("calm")
    await api.consumer("mine", "calm")
    slow = {"field": "data.text", "op": "regex", "value": "[ab]*a[ab]{16}c"}
    for i in range(5):
        await api.consumer(f"c{i}", "hostile", where=slow)
    chance = random.Random(7)
    await api.publish(
        *((f"k.{i}", {"text": chance.randbytes(200_000).translate(b"ab" * 128).decode()}) for i in range(20)),
        stream="hostile",
    )
    # Over the API, so that the server knows immediately that there are tokens. Until then all callers are one for it.
    ops = caller(api, (await api.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201))["token"])

    async def tenant(name: str, *rights: str) -> Ask:
        answer = await ops("POST", "/tokens", {"name": name, "scopes": [f"{right}:{name}" for right in rights]})
        return caller(api, answer.json()["token"])

    hostile, calm = await tenant("hostile", "publish", "consume", "admin"), await tenant("calm", "publish", "consume")
    wide = msgspec.json.encode({"name": "wide", "filters": ["a"] * 300_000})  # once, since the attackers share our loop
    where = f"data.text regex '{slow['value']}'"
    attacks = [
        *(again_and_again(hostile, "GET", "/streams/hostile/messages", where=where) for _ in range(10)),
        *(again_and_again(hostile, "GET", "/streams/hostile/messages", limit=10_000) for _ in range(2)),
        *(again_and_again(hostile, "GET", "/streams/hostile/consumers") for _ in range(10)),
        *(again_and_again(hostile, "POST", f"/streams/hostile/consumers/c{i}/receive", {}) for i in range(5)),
        *(again_and_again(hostile, "POST", "/streams/hostile/messages", {"key": "k", "data": 1}) for _ in range(10)),
        again_and_again(hostile, "POST", "/streams/hostile/consumers", wide),
    ]
    running = [asyncio.ensure_future(attack) for attack in attacks]
    try:
        for i in range(10):
            answer = await calm("POST", "/streams/calm/messages", {"key": f"k{i}", "data": i})
            assert answer.status_code == 200, answer.text
            answer = await calm("POST", "/streams/calm/consumers/mine/receive", {"batch_size": 10, "wait_for": "5s"})
            assert answer.status_code == 200, answer.text
            found = answer.json()["data"]
            assert [one["message"]["data"] for one in found] == [i]
            ids = [one["ack_id"] for one in found]
            answer = await calm("POST", "/streams/calm/consumers/mine/ack", {"ack_ids": ids})
            assert answer.status_code == 200, answer.text
        answer = await calm("GET", "/streams/calm/messages", limit=5)
        assert answer.status_code == 200, f"the places of the management API go round: {answer.text}"
        assert not any(one.done() for one in running), "the attacks must still be running"
    finally:
        for one in running:
            one.cancel()
        for one in running:
            with suppress(asyncio.CancelledError):
                await one
