"""Starlette: the HTTP API under /headrace, behind the shop's own check of who calls.

uvicorn examples.embedding.server_mounted_starlette:web
curl -H 'x-shop: staff' localhost:8000/headrace/v1/streams
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace import App
from headrace.server.asgi import Server

app = App(streams=["orders"])


class OnlyStaff:
    """Lets through whom the shop knows."""

    def __init__(self, web: ASGIApp) -> None:
        self._web = web

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"x-shop", b"staff") not in scope["headers"]:
            await PlainTextResponse("only for staff", 403)(scope, receive, send)
            return
        await self._web(scope, receive, send)


@asynccontextmanager
async def lifespan(_web: Starlette) -> AsyncIterator[None]:
    async with app.running():
        yield


web = Starlette(
    routes=[Mount("/headrace", app=Server(app), middleware=[Middleware(OnlyStaff)])],
    lifespan=lifespan,
)
