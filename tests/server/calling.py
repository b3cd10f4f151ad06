"""A server in the test's process, called over its ASGI interface."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import httpx

from headrace.server.asgi import Server


class Api:
    """Calls the API, under its two prefixes in turn: what the one has done, the other must know.

    Args:
        client: sends requests to the server.
        server: which is called.
    """

    def __init__(self, client: httpx.AsyncClient, server: Server) -> None:
        self.client = client
        self.server = server
        self._prefixes = cycle(("/v1", "/api"))

    @property
    def prefix(self) -> str:
        """The next one."""
        return next(self._prefixes)

    async def answer(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        """The answer to a request with a JSON body, if any."""
        given = {} if body is None else {"json": body}
        return await self.client.request(method, self.prefix + path, params=query or None, **given)

    async def call(self, method: str, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        """What an answer says, which has this status."""
        answer = await self.answer(method, path, body, **query)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        return await self.call("GET", path, status=status, **query)

    async def post(self, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        return await self.call("POST", path, body, status, **query)

    async def refused(self, method: str, path: str, body: Any = None, *, status: int, **query: Any) -> dict[str, Any]:
        """An error, whose shape is checked."""
        told: dict[str, Any] = await self.call(method, path, body, status, **query)
        assert set(told) <= {"summary", "code", "validation_errors", "stale"}
        assert told["summary"]
        assert told["code"] == told["code"].lower()
        return told

    # --- what many tests begin with

    async def stream(self, name: str = "orders", **settings: Any) -> dict[str, Any]:
        """Make a stream."""
        made: dict[str, Any] = await self.post("/streams", {"name": name, **settings}, 201)
        return made

    async def consumer(self, name: str = "ship", stream: str = "orders", **settings: Any) -> dict[str, Any]:
        """Make a consumer."""
        made: dict[str, Any] = await self.post(f"/streams/{stream}/consumers", {"name": name, **settings}, 201)
        return made

    async def publish(self, *messages: tuple[str, Any], stream: str = "orders") -> None:
        """Publish messages, each a key and its data."""
        if not messages:
            return
        given = [{"key": key, "data": data} for key, data in messages]
        answer = await self.post(f"/streams/{stream}/messages", {"messages": given})
        assert answer == {"data": {"published": len(messages)}}

    async def receive(self, consumer: str = "ship", stream: str = "orders", **body: Any) -> list[dict[str, Any]]:
        """Receive messages."""
        answer = await self.post(f"/streams/{stream}/consumers/{consumer}/receive", {"batch_size": 100, **body})
        return list(answer["data"])
