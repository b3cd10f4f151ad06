"""aiohttp: orders come in by HTTP, and are shipped beside it, in the same process.

python -m aiohttp.web examples.embedding.aiohttp_app:make
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

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


async def take(request: web.Request) -> web.Response:
    order = msgspec.json.decode(await request.read(), type=Order)
    await app.publish("orders", f"orders.{order.id}", order)
    return web.Response(status=202)


async def look(request: web.Request) -> web.Response:
    return web.json_response({"shipped": int(request.match_info["order_id"]) in shipped})


async def ready(_request: web.Request) -> web.Response:
    found = app.readiness()
    return web.Response(body=msgspec.json.encode(found), status=200 if found else 503, content_type="application/json")


async def at_work(_web: web.Application) -> AsyncIterator[None]:
    async with app.running():
        yield


def make(_arguments: list[str]) -> web.Application:
    made = web.Application()
    made.cleanup_ctx.append(at_work)
    made.add_routes([web.post("/orders", take), web.get("/orders/{order_id}", look), web.get("/ready", ready)])
    return made
