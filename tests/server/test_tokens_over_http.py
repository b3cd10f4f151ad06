"""Tokens over HTTP. Every route requires one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.server.calling import Api
from tests.support.paths import filled

pytestmark = pytest.mark.asyncio

# Request bodies by the end of the route's path. Without its body, a route may report that error before
# the missing token.
BODIES: dict[str, Any] = {
    "POST /databases": {"name": "eu", "url_from": "env:HR_TEST_NONE"},
    "POST /streams": {"name": "orders2"},
    "POST /streams/{stream}/messages": {"key": "k", "data": 1},
    "POST /streams/{stream}/republish": {"target": "orders"},
    "POST /streams/{stream}/publish": {"key": "k", "data": 1},
    "POST /messages": {"messages": [{"stream": "orders", "key": "k", "data": 1}]},
    "POST /jobs": {"kind": "redrive", "stream": "orders", "consumer": "ship"},
    "POST /streams/{stream}/erasures": {"seqs": [1]},
    "POST /streams/{stream}/consumers": {"name": "ship2"},
    "POST /streams/{stream}/consumers/{consumer}/seek": {"to": "end"},
    "POST /http-consumers": {"name": "ship2", "stream": "orders"},
    "POST /tokens": {"name": "another", "scopes": ["consume"]},
    "POST /sources": {"kind": "webhook", "name": "shop2", "stream": "orders"},
    "POST /source-check": {"kind": "postgres", "name": "till", "stream": "orders", "tables": ["public.orders"]},
}
OF_THE_CALLER = {"GET /me", "POST /session", "DELETE /session"}
"""Any token is right for the first, and `tests/security/test_sessions.py` tries the others."""

OF_ITS_STREAMS = {
    "GET /audit",
    "GET /jobs",
    "GET /live",
    "GET /live/snapshot",
    "GET /live/streams",
    "GET /live/consumers",
    "GET /live/sources",
}
"""Any token gets what is of its own streams. The tests of these routes look at what that is."""

WANT_NONE = {"POST /webhook/{source}", "GET /health", "GET /ready"}


@pytest_asyncio.fixture
async def ops(api: Api) -> Api:
    """The API of a server with tokens, called with a token that allows everything."""
    created = await api.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201)
    api.client.headers["authorization"] = f"Bearer {created['token']}"
    return api


async def test_the_first_token_closes_the_server(api: Api) -> None:
    assert await api.get("/tokens") == {"data": []}
    created = await api.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201)
    answer = await api.answer("GET", "/tokens")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["code"] == "unauthorized"
    api.client.headers["authorization"] = f"Bearer {created['token']}"
    (listed,) = (await api.get("/tokens"))["data"]
    assert listed == {name: value for name, value in created.items() if name != "token"}
    assert listed["scopes"] == ["admin"]


@pytest.mark.parametrize("by", ["id", "name"])
async def test_a_token_is_revoked_at_once_by_its_id_or_its_name(ops: Api, by: str) -> None:
    created = await ops.post("/tokens", {"name": "ci", "scopes": ["consume"], "expires_in_ms": 60_000}, 201)
    header = {"authorization": f"Bearer {created['token']}"}
    assert (await ops.client.get(f"{ops.prefix}/streams", headers=header)).status_code == 200
    revoked = await ops.call("DELETE", f"/tokens/{created[by]}")
    assert (revoked["id"], revoked["revoked_at"] is None) == (created["id"], False)
    assert (await ops.client.get(f"{ops.prefix}/streams", headers=header)).status_code == 401
    assert revoked in (await ops.get("/tokens"))["data"]


_INVALID: list[tuple[dict[str, Any], str]] = [
    ({"name": "a b", "scopes": ["consume"]}, "name"),
    ({"name": "ci", "scopes": []}, "scopes"),
    ({"name": "ci", "scopes": ["publish:Orders!"]}, "scopes"),
    ({"name": "ci", "scopes": ["consume"], "expires_in_ms": 0}, "expires_in_ms"),
    ({"name": "ci", "scopes": ["consume"], "expires_in_ms": 10**30}, "expires_in_ms"),
    ({"scopes": ["consume"]}, "name"),
]


async def test_invalid_settings_make_no_token(ops: Api) -> None:
    for body, field in _INVALID:
        answer = await ops.refused("POST", "/tokens", body, status=422)
        assert list(answer["validation_errors"]) == [field], body
    assert len((await ops.get("/tokens"))["data"]) == 1


async def test_a_name_that_is_taken_and_one_that_is_not_there(ops: Api) -> None:
    answer = await ops.refused("POST", "/tokens", {"name": "ops", "scopes": ["consume"]}, status=409)
    assert answer["code"] == "exists"
    assert (await ops.refused("DELETE", "/tokens/nobody", status=404))["code"] == "unknown_token"


async def test_a_publisher_publishes_and_nothing_else(ops: Api) -> None:
    await ops.stream()
    await ops.consumer()
    created = await ops.post("/tokens", {"name": "shop", "scopes": ["publish:orders"]}, 201)
    ops.client.headers["authorization"] = f"Bearer {created['token']}"
    await ops.publish(("k", 1))
    for method, path in (("GET", "/streams/orders/messages"), ("POST", "/streams/orders/consumers/ship/receive")):
        answer = await ops.refused(method, path, status=403)
        assert "'consume:orders'" in answer["summary"]
    answer = await ops.refused("POST", "/tokens", {"name": "more", "scopes": ["admin"]}, status=403)
    assert "'admin'" in answer["summary"]


# --- every route


@pytest_asyncio.fixture
async def client(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that has one object of each kind except tokens."""
    app = App(dsn, streams=["orders", "parcels"])
    server = Server(app, Options(database_references=("env:HR_TEST_NONE",)))
    async with app.running():
        await app.admin.create_consumer(ConsumerSpec(stream="orders", name="ship"))
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            created = await client.post("/v1/sources", json={"kind": "webhook", "name": "hook", "stream": "orders"})
            assert created.status_code == 201, created.text
            yield client


async def _tokens(client: httpx.AsyncClient) -> dict[str, str]:
    """Tokens that allow everything, everything on another stream only, and one to be revoked."""
    found = {}
    header: dict[str, str] = {}
    for name, scopes in (("ops", ["admin"]), ("weak", ["admin:parcels"]), ("spare", ["consume"])):
        answer = await client.post("/v1/tokens", json={"name": name, "scopes": scopes}, headers=header)
        found[name] = answer.json()["token"]
        header = {"authorization": f"Bearer {found['ops']}"}
    return found


async def _routes(client: httpx.AsyncClient) -> list[tuple[str, str, str]]:
    """Method, path and a label of each operation of the API's description, under both prefixes. Deletions come last."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods if method in _METHODS]
    assert len(found) > 50
    found.sort(key=lambda one: (one[0] == "DELETE", -len(one[1])))
    return list(_under_both(found))


_METHODS = ("get", "post", "put", "patch", "delete")


def _under_both(routes: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    for method, path in routes:
        word = f"{method} {path.removeprefix('/v1')}"
        for prefix in ("/v1", "/api") if path.startswith("/v1/") else ("",):
            yield method, prefix + filled(path).removeprefix("/v1"), word


async def _status(client: httpx.AsyncClient, method: str, path: str, word: str, token: str | None) -> int:
    body = BODIES.get(word, None if method in ("GET", "DELETE") else {})
    header = {} if token is None else {"authorization": f"Bearer {token}"}
    answer = await client.request(method, path, json=body, headers=header)
    assert ("www-authenticate" in answer.headers) == (answer.status_code == 401), (method, path)
    if answer.status_code in (401, 403) and path.startswith(("/v1", "/api")):
        assert set(answer.json()) == {"summary", "code"}, (method, path)
    return answer.status_code


async def test_every_route_wants_a_token_and_the_right_one(client: httpx.AsyncClient) -> None:
    tokens = await _tokens(client)
    for method, path, word in await _routes(client):
        statuses = [await _status(client, method, path, word, token) for token in (None, tokens["weak"], tokens["ops"])]
        unknown = await _status(client, method, path, word, "nonsense")
        if word in OF_THE_CALLER:
            continue
        if word in WANT_NONE:
            assert not {401, 403} & {unknown, *statuses}, (method, path, statuses)
            continue
        assert unknown == 401, (method, path)
        if word in OF_ITS_STREAMS:
            assert statuses == [401, 200, 200], (method, path, statuses)
        else:
            assert statuses[:2] == [401, 403], (method, path, statuses)
            assert statuses[2] not in (401, 403), (method, path, statuses)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/streams/nope"),
        ("POST", "/streams/nope/messages"),
        ("POST", "/streams/nope/consumers/nope/receive"),
        ("POST", "/http_pull_consumers/nope/receive"),
        ("GET", "/http-consumers/nope/next"),
        ("POST", "/streams"),
        ("PATCH", "/tokens"),
        ("GET", "/nowhere"),
    ],
)
async def test_a_caller_without_a_token_learns_nothing(ops: Api, method: str, path: str) -> None:
    del ops.client.headers["authorization"]
    answer = await ops.client.request(method, ops.prefix + path, content=b"{no json")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_the_body_of_a_caller_without_a_token_is_not_read(dsn: str) -> None:
    app = App(dsn)
    server = Server(app)
    read: list[str] = []
    answered: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        read.append("body")
        return {"type": "http.request", "body": b"{}", "more_body": True}

    async def send(message: Any) -> None:
        answered.append(message)

    async with app.running():
        await app.admin.create_token("ops", ["admin"])
        for path in ("/v1/streams/orders/messages", "/v1/streams"):
            scope = {
                "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
                "http_version": "1.1", "scheme": "http", "client": None, "server": None, "asgi": {"version": "3.0"},
            }  # fmt: skip
            await server(scope, receive, send)
    assert [one["status"] for one in answered if "status" in one] == [401, 401]
    assert read == []
