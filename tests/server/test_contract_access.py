"""The contract's row about tokens. Once a token exists, every route requires one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.calling import Api
from tests.support.paths import filled

pytestmark = pytest.mark.asyncio

_UNGUARDED = {"health", "ready", "deliver", "read_me", "sign_in", "sign_out"}
"""Routes without tokens: probes, webhooks, which are verified by their signatures, and those that say who the caller is, which
`tests/security/test_sessions.py` tries."""


async def _token(api: Api, *scopes: str) -> dict[str, str]:
    created = await api.call(
        "POST", "/tokens", {"name": "-".join(scopes).replace(":", "-"), "scopes": list(scopes)}, 201
    )
    return {"authorization": f"Bearer {created['token']}"}


async def test_every_operation_is_401_without_a_token_and_403_without_its_scope(api: Api) -> None:
    await api.stream("orders")
    await api.consumer("ship")
    await api.stream("others")
    document = (await api.client.get("/openapi.json")).json()
    api.client.headers.update(await _token(api, "admin"))
    elsewhere = await _token(api, "admin:others")
    del api.client.headers["authorization"]
    calls = 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if operation["operationId"] in _UNGUARDED:
                continue
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            if operation["operationId"] in ("create_stream", "create_http_consumer"):
                body = {"name": "orders"} if path.endswith("streams") else {"name": "c", "stream": "orders"}
            for headers, status in (({}, 401), ({"authorization": "Bearer nonsense"}, 401), (elsewhere, 403)):
                if path == "/metrics" or (status == 403 and "{source}" in path):
                    continue
                if status == 403 and path in _OWN:
                    continue  # it answers about the token's own streams
                answer = await api.client.request(method, filled(path), json=body, headers=headers)
                assert answer.status_code == status, (method, path, answer.text)
                assert set(answer.json()) == {"summary", "code"}
                assert (answer.headers.get("www-authenticate") is not None) == (status == 401)
                calls += 1
    assert calls > 100


_OWN = {
    "/v1/jobs",
    "/v1/audit",
    "/v1/live",
    "/v1/live/snapshot",
    "/v1/live/streams",
    "/v1/live/consumers",
    "/v1/live/sources",
    "/v1/me",
}
"""The paths whose answer has what a token may see."""


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
    for verb in ("pause", "seek", "replay", "dead_letters/redrive", "dead_letters/purge"):
        assert await status(reader, "POST", f"/streams/orders/consumers/ship/{verb}", {}) in (403, 422), verb
    assert await status(reader, "POST", "/streams/orders/consumers/ship/pause") == 403
    assert await status(reader, "DELETE", "/streams/orders") == 403
    assert await status(reader, "GET", "/streams") == 403
    assert await status(reader, "GET", "/streams/unknown") == 403
    assert await status({}, "GET", "/streams/unknown") == 404
