"""Starlette: orders come in by HTTP, and are shipped beside it, in the same process.

uvicorn examples.embedding.starlette_app:web
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

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


async def take(request: Request) -> Response:
    order = msgspec.json.decode(await request.body(), type=Order)
    await app.publish("orders", f"orders.{order.id}", order)
    return Response(status_code=202)


async def look(request: Request) -> Response:
    return JSONResponse({"shipped": request.path_params["order_id"] in shipped})


async def ready(_request: Request) -> Response:
    found = app.readiness()
    return Response(msgspec.json.encode(found), 200 if found else 503, media_type="application/json")


@asynccontextmanager
async def lifespan(_web: Starlette) -> AsyncIterator[None]:
    async with app.running():
        yield


web = Starlette(
    routes=[
        Route("/orders", take, methods=["POST"]),
        Route("/orders/{order_id:int}", look),
        Route("/ready", ready),
    ],
    lifespan=lifespan,
)
