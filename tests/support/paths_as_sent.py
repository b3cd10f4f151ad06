"""Requests to an ASGI application whose paths arrive exactly as they are written, which clients would tidy up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import anyio
import msgspec

from headrace.server.asgi import Server


async def ask(
    server: Server, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None,
    *, client: str = "127.0.0.1", root_path: str = "",
) -> tuple[int, dict[str, str], Any]:  # fmt: skip
    """Send a request. Returns the status, the headers and the decoded body of the answer.

    Args:
        target: the path and the query, as on the wire.
        root_path: where the server is mounted, which the target then begins with.
    """
    path, _, query = target.partition("?")
    content = b"" if body is None else msgspec.json.encode(body)
    given = {
        "host": "headrace",
        "content-type": "application/json",
        "content-length": str(len(content)),
        **(headers or {}),
    }
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": root_path,
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": (client, 5), "server": ("headrace", 80),
    }  # fmt: skip
    events = iter([{"type": "http.request", "body": content, "more_body": False}])
    sent: list[Any] = []
    answered_all = anyio.Event()

    async def receive() -> Any:
        event = next(events, None)
        if event is None:
            await answered_all.wait()
        return event or {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            answered_all.set()

    await server(scope, receive, send)
    found = b"".join(one.get("body", b"") for one in sent[1:])
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, msgspec.json.decode(found) if found[:1] in (b"{", b"[") else found
