"""Litestar: orders come in by HTTP, and are shipped beside it, in the same process.

uvicorn examples.embedding.litestar_app:web
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from litestar import Litestar, Response, get, post

from headrace import App

app = App(streams=["orders"])
shipped: set[int] = set()


class Order(msgspec.Struct):
    id: int
    items: list[str]


@app.consumer("orders")
async def ship(order: Order) -> None:
    shipped.add(order.id)
    print(f"shipped order {order.id}", flush=True)


@asynccontextmanager
async def lifespan(_web: Litestar) -> AsyncIterator[None]:
    async with app.running():
        yield


@post("/orders", status_code=202)
async def take(data: Order) -> None:
    await app.publish("orders", f"orders.{data.id}", data)


@get("/orders/{order_id:int}")
async def look(order_id: int) -> dict[str, bool]:
    return {"shipped": order_id in shipped}


@get("/ready")
async def ready() -> Response[dict[str, object]]:
    found = app.readiness()
    return Response({"ready": found.ready, "reasons": found.reasons}, status_code=200 if found else 503)


web = Litestar([take, look, ready], lifespan=[lifespan])
