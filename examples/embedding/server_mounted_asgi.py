"""No framework: the HTTP API under /headrace, by an ASGI application of a few lines.

uvicorn examples.embedding.server_mounted_asgi:web
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from headrace import App
from headrace.server.asgi import Server

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

app = App(streams=["orders"])
api = Server(app)


async def web(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
    elif scope["type"] == "http" and scope["path"].startswith("/headrace/"):
        await api({**scope, "root_path": "/headrace"}, receive, send)
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "body": b"a shop"})


async def live(receive: Receive, send: Send) -> None:
    await receive()  # to start
    async with app.running():
        await send({"type": "lifespan.startup.complete"})
        await receive()  # to stop
    await send({"type": "lifespan.shutdown.complete"})
