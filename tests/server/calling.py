"""A server in the test's process, called over its ASGI interface."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import httpx

from headrace.server.asgi import Server


class Api:
    """A client that calls the API under its two prefixes in turn, because both must work on the same data.

    Args:
        client: Sends requests to the server.
        server: The server under test.
    """

    def __init__(self, client: httpx.AsyncClient, server: Server) -> None:
        self.client = client
        self.server = server
        self._prefixes = cycle(("/v1", "/api"))

    @property
    def prefix(self) -> str:
        """Return the next prefix."""
        return next(self._prefixes)

    async def answer(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        """Send a request, with a JSON body if any, and return the answer."""
        given = {} if body is None else {"json": body}
        return await self.client.request(method, self.prefix + path, params=query or None, **given)

    async def call(self, method: str, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        """Send a request, check its status, and return the decoded answer."""
        answer = await self.answer(method, path, body, **query)
        if status == 201 and answer.request.url.path.startswith("/api/"):
            status = 200  # the only success that the clients under /api know
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        return await self.call("GET", path, status=status, **query)

    async def post(self, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        return await self.call("POST", path, body, status, **query)

    async def refused(self, method: str, path: str, body: Any = None, *, status: int, **query: Any) -> dict[str, Any]:
        """Send a request that must fail, check the shape of the error, and return it."""
        answer: dict[str, Any] = await self.call(method, path, body, status, **query)
        assert set(answer) <= {"summary", "code", "validation_errors", "stale"}
        assert answer["summary"]
        assert answer["code"] == answer["code"].lower()
        return answer

    # --- common beginnings of tests

    async def stream(self, name: str = "orders", **settings: Any) -> dict[str, Any]:
        """Create a stream."""
        made: dict[str, Any] = await self.post("/streams", {"name": name, **settings}, 201)
        return made

    async def consumer(self, name: str = "ship", stream: str = "orders", **settings: Any) -> dict[str, Any]:
        """Create a consumer."""
        made: dict[str, Any] = await self.post(f"/streams/{stream}/consumers", {"name": name, **settings}, 201)
        return made

    async def publish(self, *messages: tuple[str, Any], stream: str = "orders") -> None:
        """Publish messages, given as pairs of key and data."""
        if not messages:
            return
        given = [{"key": key, "data": data} for key, data in messages]
        answer = await self.post(f"/streams/{stream}/messages", {"messages": given})
        assert answer == {"data": {"published": len(messages)}}

    async def receive(self, consumer: str = "ship", stream: str = "orders", **body: Any) -> list[dict[str, Any]]:
        """Receive messages."""
        answer = await self.post(f"/streams/{stream}/consumers/{consumer}/receive", {"batch_size": 100, **body})
        return list(answer["data"])
