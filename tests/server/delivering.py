"""Sources that are created, and webhooks that are sent to them, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from tests.server.calling import Api

OK = {"success": True}
JSON = {"content-type": "application/json"}


async def source(api: Api, name: str = "hook", stream: str = "orders", **settings: Any) -> dict[str, Any]:
    """Create a webhook source."""
    made: dict[str, Any] = await api.post(
        "/sources", {"kind": "webhook", "name": name, "stream": stream, **settings}, 201
    )
    return made


async def deliver(
    api: Api, body: bytes, name: str = "hook", headers: Mapping[str, str] | None = None, query: str = ""
) -> httpx.Response:
    """Deliver a webhook and return the answer."""
    return await api.client.post(f"{api.prefix}/webhook/{name}{query}", content=body, headers=dict(headers or {}))


async def messages(api: Api, stream: str = "orders") -> list[dict[str, Any]]:
    """Return the messages of the stream."""
    return list((await api.get(f"/streams/{stream}/messages", limit=1000))["data"])
