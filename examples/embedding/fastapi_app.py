"""FastAPI: orders come in by HTTP, and are shipped beside it, in the same process.

uvicorn examples.embedding.fastapi_app:web
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI, Response

from headrace import App

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


@web.post("/orders", status_code=202)
async def take(order: Order) -> None:
    await app.publish("orders", f"orders.{order.id}", order)


@web.get("/orders/{order_id}")
async def look(order_id: int) -> dict[str, bool]:
    return {"shipped": order_id in shipped}


@web.get("/ready")
async def ready(response: Response) -> dict[str, object]:
    found = app.readiness()
    response.status_code = 200 if found else 503
    return {"ready": found.ready, "reasons": found.reasons}
