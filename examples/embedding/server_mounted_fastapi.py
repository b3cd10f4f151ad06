"""FastAPI: the HTTP API under /headrace, beside a shop's own routes, in the same process.

uvicorn examples.embedding.server_mounted_fastapi:web
curl -d '{"key": "orders.1", "data": {"id": 1, "items": ["a hat"]}}' localhost:8000/headrace/v1/streams/orders/messages
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI

from headrace import App
from headrace.server.asgi import Server

app = App(streams=["orders"])
shipped: set[int] = set()


@dataclass
class Order:
    id: int
    items: list[str]


@app.consumer("orders")
async def ship(order: Order) -> None:
    shipped.add(order.id)
    print(f"shipped order {order.id}", flush=True)


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    async with app.running():
        yield


web = FastAPI(lifespan=lifespan)


@web.get("/orders/{order_id}")
async def look(order_id: int) -> dict[str, bool]:
    return {"shipped": order_id in shipped}


web.mount("/headrace", Server(app))
