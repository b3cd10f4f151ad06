"""A proxy that signs users in, and clients that reach the server past it or through it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.model.errors import ConfigurationError
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.security.test_sessions import FOREIGN, OWN

pytestmark = pytest.mark.asyncio

PROXY = Options(
    allowed_hosts=("headrace",),
    proxy_user_header="X-Forwarded-User",
    proxy_from=("10.0.0.0/8", "::1"),
    proxy_token="people",
)
USER = {"x-forwarded-user": "ada@example.com"}


@pytest_asyncio.fixture
async def server(dsn: str) -> AsyncIterator[Server]:
    app = App(dsn, streams=["orders"])
    server = Server(app, PROXY)
    async with app.running():
        await app.admin.create_token("ops", ["admin"])
        await app.admin.create_token("people", ["consume:orders"])
        yield server


def _client(server: Server, address: str = "10.1.2.3") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=server, client=(address, 5))
    return httpx.AsyncClient(transport=transport, base_url="http://headrace")


async def test_a_user_acts_with_the_scopes_of_the_proxies_token_under_its_own_name(server: Server) -> None:
    for address in ("10.1.2.3", "::1", "::ffff:10.9.9.9"):
        async with _client(server, address) as client:
            me = (await client.get("/v1/me", headers=USER)).json()["data"]
            assert (me["name"], me["via"], me["scopes"]) == ("ada@example.com", "proxy", ["consume:orders"])
            assert (await client.get("/v1/streams/orders", headers=USER)).status_code == 200
            assert (await client.get("/v1/tokens", headers=USER)).status_code == 403
            assert (await client.get("/v1/me")).status_code == 401


async def test_the_header_counts_from_the_proxies_only(server: Server) -> None:
    for address in ("11.0.0.1", "127.0.0.1", "::2", "testclient", ""):
        async with _client(server, address) as client:
            assert (await client.get("/v1/me", headers=USER)).status_code == 401, address


async def test_a_header_that_a_client_has_added_is_refused(server: Server) -> None:
    async with _client(server) as client:
        for values in ((b"eve", b"ada"), (b"e\x7fve",), (b"x" * 300,)):
            answer = await client.get("/v1/me", headers=[(b"x-forwarded-user", value) for value in values])
            assert answer.status_code == 400, values
        assert (await client.get("/v1/me", headers={"x-forwarded-user": " "})).status_code == 401


async def test_no_other_site_uses_the_proxys_sign_in(server: Server) -> None:
    async with _client(server) as client:
        for page in FOREIGN:
            answer = await client.post("/v1/streams", json={"name": "stolen"}, headers={**page, **USER})
            assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin"), page
        answer = await client.post("/v1/streams", json={"name": "more"}, headers={**OWN, **USER})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_it_ends_with_its_token(server: Server) -> None:
    async with _client(server) as client:
        assert (await client.get("/v1/me", headers=USER)).status_code == 200
        revoked = await server.app.admin.revoke_token("people")
        server.access.changed(revoked.id)
        assert (await client.get("/v1/me", headers=USER)).status_code == 401


async def test_a_token_of_the_callers_own_counts_before_the_proxy(server: Server) -> None:
    made = await server.app.admin.create_token("shop", ["publish:orders"])
    async with _client(server) as client:
        headers = {**USER, "authorization": f"Bearer {made.token}"}
        assert (await client.get("/v1/me", headers=headers)).json()["data"]["name"] == "shop"


async def test_the_options_belong_together() -> None:
    for given in (
        {"proxy_user_header": "X-User"},
        {"proxy_user_header": "X-User", "proxy_from": ("10.0.0.0/8",)},
        {"proxy_token": "people", "proxy_user_header": "X-User"},
        {"proxy_token": "people", "proxy_user_header": "X User", "proxy_from": ("10.0.0.0/8",)},
        {"proxy_token": "people", "proxy_user_header": "X-User", "proxy_from": ("proxy.example",)},
        {"proxy_token": "people", "proxy_user_header": "X-User", "proxy_from": ("10.0.0.1/8",)},
    ):
        with pytest.raises(ConfigurationError):
            Options(**given)  # type: ignore[arg-type]
