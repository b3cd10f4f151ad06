"""Litestar: the HTTP API under /headrace, beside a shop's own routes.

uvicorn examples.embedding.server_mounted_litestar:web
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar, asgi, get

from headrace import App
from headrace.server.asgi import Server

app = App(streams=["orders"])
api = Server(app)


@asynccontextmanager
async def lifespan(_web: Litestar) -> AsyncIterator[None]:
    async with app.running():
        yield


@get("/")
async def shop() -> str:
    return "a shop"


web = Litestar([shop, asgi("/headrace", is_mount=True)(api)], lifespan=[lifespan])
