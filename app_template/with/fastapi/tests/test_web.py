"""Routes and handlers together, on real Postgres, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from headrace.testing import Harness

from my_service import web
from my_service.service import app, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(harness: Callable[..., Harness]) -> AsyncIterator[Harness]:
    async with harness(app) as service, web.database(web.web):
        yield service


@pytest.fixture
async def client(service: Harness) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web.web), base_url="http://service") as client:
        yield client


async def test_an_order_over_http_is_shipped(service: Harness, client: httpx.AsyncClient) -> None:
    taken = await client.post("/orders", json={"customer": "Ada", "items": ["a hat"]})
    assert taken.status_code == 202
    path = f"/orders/{taken.json()['id']}"
    assert (await client.get(path)).json()["tracking"] is None
    await service.drain(raise_errors=True)
    assert (await client.get(path)).json()["tracking"] == "T00000001-1"
    service.assert_all_acked()


async def test_an_order_that_is_not_committed_is_not_shipped(
    service: Harness, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(session: object) -> None:
        raise OSError("the server lost its power")

    monkeypatch.setattr(web.AsyncSession, "commit", fail)
    with pytest.raises(OSError, match="power"):
        await client.post("/orders", json={"customer": "Ada", "items": ["a hat"]})
    monkeypatch.undo()
    await service.drain()
    assert await service.published("orders") == []
    assert (await client.get("/orders/1")).status_code == 404


async def test_an_order_without_items_is_refused(service: Harness, client: httpx.AsyncClient) -> None:
    assert (await client.post("/orders", json={"customer": "Ada", "items": []})).status_code == 422
    assert await service.published("orders", f"orders.{settings.region}.>") == []
