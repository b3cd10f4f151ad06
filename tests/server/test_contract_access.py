"""The contract's row about tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.calling import Api

pytestmark = pytest.mark.asyncio


async def _token(api: Api, *scopes: str) -> dict[str, str]:
    created = await api.call(
        "POST", "/tokens", {"name": "-".join(scopes).replace(":", "-"), "scopes": list(scopes)}, 201
    )
    return {"authorization": f"Bearer {created['token']}"}


async def test_a_token_opens_what_its_scope_names(api: Api) -> None:
    await api.stream()
    await api.consumer()
    api.client.headers.update(await _token(api, "admin"))
    publisher, reader = await _token(api, "publish:orders"), await _token(api, "consume:orders")

    async def status(headers: dict[str, str], method: str, path: str, body: Any = None) -> int:
        answer = await api.client.request(method, api.prefix + path, json=body, headers=headers)
        return answer.status_code

    message = {"key": "a", "data": 1}
    assert await status(publisher, "POST", "/streams/orders/messages", message) == 200
    assert await status(reader, "POST", "/streams/orders/messages", message) == 403
    for path in (
        "",
        "/messages",
        "/messages/a",
        "/consumers",
        "/consumers/ship",
        "/consumers/ship/messages",
        "/consumers/ship/receive",
    ):
        assert await status(reader, "GET", f"/streams/orders{path}") == 200, path
        assert await status(publisher, "GET", f"/streams/orders{path}") == 403, path
    assert await status(reader, "GET", "/http-consumers/ship/next") == 200
    assert await status(reader, "GET", "/http_pull_consumers/ship/receive") == 200
    for verb in ("pause", "seek", "replay", "cancel", "dead_letters/redrive", "dead_letters/purge"):
        assert await status(reader, "POST", f"/streams/orders/consumers/ship/{verb}", {}) in (403, 422), verb
    assert await status(reader, "POST", "/streams/orders/consumers/ship/pause") == 403
    assert await status(reader, "DELETE", "/streams/orders") == 403
    assert await status(reader, "GET", "/streams") == 403
    assert await status(reader, "GET", "/streams/unknown") == 403
    assert await status({}, "GET", "/streams/unknown") == 404
