"""Transforms that an attacker names over HTTP: only modules that the operator allows."""

from __future__ import annotations

import httpx
import pytest

from headrace import App, store
from headrace.model.errors import ConfigurationError
from headrace.server.access.transform_modules import TransformModules
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.sources.postgres.spec import PostgresSpec
from tests.server.calling import Api

ORDERS = {"kind": "postgres", "name": "orders", "stream": "orders", "tables": ["public.orders"]}
ATTACKS = [
    "antigravity:f", "shop:__class__", "shop.__main__:f", "shop.sub:__class__", "shopping:f", "other.shop:f", "this:f",
]  # fmt: skip


@pytest.mark.asyncio
async def test_only_allowed_modules_can_be_named_over_http(dsn: str, database: store.Database) -> None:
    await database.fetchval("create table orders (id int primary key)")
    app = App(dsn)
    for modules, attacks in ((), [*ATTACKS, "shop:f"]), (("shop",), ATTACKS):
        server = Server(app, Options(capture=False, transforms=modules))
        async with app.running():
            transport = httpx.ASGITransport(app=server)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                api = Api(client, server)
                if not modules:
                    spec = PostgresSpec(name="old", stream="old", tables=["public.orders"], transform="elsewhere:f")
                    await app.admin.create_source(spec)
                for attack in attacks:
                    for method, path, body in (
                        ("POST", "/v1/sources", {**ORDERS, "transform": attack}),
                        ("POST", "/v1/source-check", {**ORDERS, "transform": attack}),
                        ("PATCH", "/v1/sources/old", {"transform": attack}),
                        ("PUT", "/v1/sources/old", {"transform": attack}),
                    ):
                        answer = await client.request(method, path, json=body)
                        assert (answer.status_code, "--transforms" in answer.text) == (422, True), (
                            method,
                            attack,
                            answer.text,
                        )
                changed = await api.call("PATCH", "/sources/old", {"rate": 7, "transform": "elsewhere:f"})
                assert (changed["rate"], changed["transform"]) == (7, "elsewhere:f")
                assert (await api.call("PATCH", "/sources/old", {"rate": 8}))["transform"] == "elsewhere:f"
                if modules:
                    assert (await api.call("PATCH", "/sources/old", {"transform": "shop.sub:f"}))["rate"] == 8
                    await api.post("/sources", {**ORDERS, "transform": "shop:f"}, 201)


def test_an_invalid_module_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="is not a module"):
        TransformModules(["shop:f"])
