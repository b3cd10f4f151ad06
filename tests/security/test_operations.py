"""Every operation of the API, with each kind of caller: its mark says which of them may use it, and no path says otherwise.

The routes are those of the application, in all dialects and under both prefixes, on streams of two databases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from litestar import get, post
from litestar.routes import HTTPRoute

from headrace.server.access.effects import Effect, check_marks, effect_of
from headrace.server.litestar_app import management
from headrace.server.options import Options
from tests.server.calling import Api
from tests.server.databases.conftest import eu_dsn, home_dsn, opened, serving_here
from tests.support.paths_as_sent import ask

__all__ = ["eu_dsn", "home_dsn"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = Options(
    allowed_hosts=("headrace",), database_references=("env:HR_TEST_*",), push_allow=("loopback",),
    proxy_user_header="X-User", proxy_from=("10.0.0.0/8",), proxy_token="people",
)  # fmt: skip

OWN = {"x-headrace-console": "1", "origin": "http://headrace", "sec-fetch-site": "same-origin"}
USER, PROXY = {"x-user": "ada"}, "10.1.1.1"

FOREIGN: tuple[dict[str, str], ...] = (
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"origin": "https://evil.example"},
    {"sec-fetch-site": "same-site", "x-headrace-console": "1"},
)
"""What a browser sends with a request that a page of another site causes."""


class Operation(NamedTuple):
    """An operation, as one of its routes has it."""

    name: str
    method: str
    path: str
    effect: Effect


def _operations() -> Iterator[Operation]:
    for route in management().routes:
        if isinstance(route, HTTPRoute) and route.path.startswith(("/v1", "/api")):
            for method, (handler, _) in route.route_handler_map.items():
                if method != "OPTIONS":
                    yield Operation(handler.handler_name, method, route.path, handler.opt["effect"])


OPERATIONS = list(_operations())
NAMES = {
    "{stream:str}": "{stream}", "{consumer:str}": "ship", "{key:str}": "k", "{seq:int}": "1", "{source:str}": "shop", "{token:str}": "spare",
    "{job:str}": "00000000-0000-0000-0000-000000000000", "{database:str}": "eu", "{schedule:str}": "nightly",
}  # fmt: skip


def _path(operation: Operation, stream: str) -> str:
    path = operation.path
    for parameter, name in NAMES.items():
        path = path.replace(parameter, name)
    for dialect in ("/http_pull_consumers/", "/http-consumers/"):
        path = path.replace(f"{dialect}ship", f"{dialect}{stream}:ship")
    for prefix in ("/v1", "/api"):
        path = path.replace(f"{prefix}/consumers/ship", f"{prefix}/consumers/{stream}:ship")
    return path.format(stream=stream)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(home_dsn: str, eu_dsn: str) -> AsyncIterator[tuple[Api, dict[str, str], dict[str, str]]]:
    """A server with `orders` in its own database, `visits` in `eu`, tokens, and a session. Returns the headers with a token of
    all scopes, and with the cookie."""
    async with serving_here(home_dsn, OPTIONS) as api:
        await api.stream("orders")
        await api.post("/databases", {"name": "eu", "url_from": "env:HR_TEST_EU"}, 201)
        await opened(api, "eu")
        await api.stream("visits", database="eu")
        for stream in ("orders", "visits"):
            await api.consumer(stream=stream)
            await api.publish(("k", 1), ("l", 2), stream=stream)
        ops = await api.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201)
        token = {"authorization": f"Bearer {ops['token']}"}
        api.client.headers.update(token)
        await api.post("/tokens", {"name": "people", "scopes": ["admin"]}, 201)
        signed_in = await api.client.post("/v1/session", json={"token": ops["token"]}, headers=OWN)
        yield api, token, {"cookie": signed_in.headers["set-cookie"].partition(";")[0]}


async def _may(api: Api, operation: Operation, stream: str, headers: dict[str, str], client: str = "127.0.0.1") -> int:
    """Send a request without a useful body, so that it changes nothing. Returns the status."""
    body = {"nothing": 1} if operation.method in ("POST", "PUT", "PATCH") else None
    path = _path(operation, stream)
    if operation.method == "DELETE":
        path += "?nothing=1"
    return (await ask(api.server, operation.method, path, body, headers, client=client))[0]


@pytest.mark.parametrize("stream", ["orders", "visits"])
async def test_an_operation_is_open_to_the_callers_of_its_mark_only(
    closed: tuple[Api, dict[str, str], dict[str, str]], stream: str
) -> None:
    api, token, cookie = closed
    for operation in OPERATIONS:
        unchecked, delivers = operation.effect == "unchecked", operation.effect == "deliver"
        status = await _may(api, operation, stream, {})
        assert (status == 401) is not unchecked, (operation, status)
        for headers, client in (({**cookie, **OWN}, "127.0.0.1"), ({**USER, **OWN}, PROXY)):
            status = await _may(api, operation, stream, headers, client)
            assert (status == 401) is delivers, (operation, headers, status)
            assert status != 403, (operation, headers, status)
        if not unchecked:
            assert await _may(api, operation, stream, token) not in (401, 403), operation


@pytest.mark.parametrize("stream", ["orders", "visits"])
async def test_another_site_uses_no_operation_with_the_credentials_of_a_browser(
    closed: tuple[Api, dict[str, str], dict[str, str]], stream: str
) -> None:
    api, _, cookie = closed
    before, in_flight = await api.get("/audit"), await _in_flight(api, stream)
    for operation in OPERATIONS:
        if operation.effect == "unchecked":
            continue
        for page in FOREIGN:
            assert await _may(api, operation, stream, {**cookie, **page}) in (401, 403), (operation, page)
            assert await _may(api, operation, stream, {**USER, **page}, PROXY) in (401, 403), (operation, page)
        if operation.effect != "read":  # an old browser says nothing, as with an image
            assert await _may(api, operation, stream, cookie) in (401, 403), operation
            assert await _may(api, operation, stream, USER, PROXY) in (401, 403), operation
    assert await api.get("/audit") == before
    assert await _in_flight(api, stream) == in_flight


async def _in_flight(api: Api, stream: str) -> int:
    app = api.server.app if stream == "orders" else api.server.databases.open["eu"].app
    return (await app.admin.consumer(stream, "ship")).num_ack_pending


async def test_the_data_plane_and_its_declarations_have_the_same_marks(
    closed: tuple[Api, dict[str, str], dict[str, str]],
) -> None:
    """Every path of the data plane is declared, and every declared one is dispatched to an endpoint of the same mark."""
    server = closed[0].server
    dispatched = 0
    for operation in OPERATIONS:
        path = _path(operation, "orders")
        found = server.data_plane.find(operation.method, path) or server._webhooks.find(operation.method, path)
        if found is not None:
            assert effect_of(found[0]) == operation.effect, operation
            dispatched += 1
        else:
            assert operation.effect not in ("deliver", "publish"), operation
    assert dispatched == 40


BODIES: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("POST", "/streams", {"name": "more"}),
    ("PATCH", "/streams/more", {"max_storage": 10_000_000}),
    ("POST", "/streams/more/consumers", {"name": "ship"}),
    ("PUT", "/streams/more/consumers/ship", {"max_deliver": 3}),
    ("POST", "/http-consumers", {"name": "read", "stream": "more"}),
    ("PATCH", "/http-consumers/more:read", {"max_deliver": 4}),
    ("POST", "/streams/more/publish", {"key": "a", "data": 1}),
    ("POST", "/streams/more/republish", {"target": "more"}),
    ("POST", "/streams/more/consumers/ship/pause", {}),
    ("POST", "/streams/more/consumers/ship/resume", None),
    ("POST", "/streams/more/consumers/ship/cancel", {"seqs": [1]}),
    ("POST", "/streams/more/consumers/ship/seek", {"to": "end"}),
    ("POST", "/streams/more/consumers/ship/replay", {"start_seq": 1}),
    ("POST", "/jobs", {"kind": "purge", "stream": "more", "consumer": "ship", "selection": {"key": "a"}}),
    ("POST", "/streams/more/erasures", {"seqs": [1], "reason": "asked for"}),
    ("POST", "/sources", {"name": "shop", "kind": "webhook", "stream": "more"}),
    ("PATCH", "/sources/shop", {"max_body": 1000}),
    ("DELETE", "/sources/shop", None),
    ("POST", "/tokens", {"name": "spare", "scopes": ["consume"]}),
    ("DELETE", "/tokens/spare", None),
    ("DELETE", "/http-consumers/more:read", None),
    ("DELETE", "/streams/more/consumers/ship", None),
    ("DELETE", "/streams/more", None),
)  # fmt: skip
"""Changes that succeed, in this order."""


@pytest.mark.parametrize("via", ["token", "session", "proxy"])
async def test_a_change_is_recorded_in_the_name_of_its_caller(
    closed: tuple[Api, dict[str, str], dict[str, str]], via: str
) -> None:
    api, token, cookie = closed
    headers, client, actor = {
        "token": ({**token, **OWN}, "127.0.0.1", ["ops", "http"]), "session": ({**cookie, **OWN}, "127.0.0.1", ["ops", "console"]),
        "proxy": ({**USER, **OWN}, PROXY, ["ada", "console"]),
    }[via]  # fmt: skip
    for method, path, body in BODIES:
        given = msgspec.to_builtins(body)
        if path == "/tokens":
            given["name"] = f"spare-{via}"
        path = path.replace("spare", f"spare-{via}")
        newest = (await api.get("/audit", limit=1))["data"][0]["id"]
        status, _, answer = await ask(api.server, method, f"/v1{path}", given, headers, client=client)
        assert status in (200, 201), (method, path, answer)
        entry = (await api.get("/audit", limit=1))["data"][0]
        assert entry["id"] != newest, (method, path)
        assert [entry["actor"], entry["via"]] == actor, (method, path)


async def test_an_operation_without_a_mark_is_refused() -> None:
    @get("/more")
    async def unmarked() -> None: ...

    @get("/more", effect="change")
    async def changes_by_get() -> None: ...

    @post("/more", effect="nothing")
    async def wrong() -> None: ...

    for handler in (unmarked, changes_by_get, wrong):
        with pytest.raises(TypeError, match=f"{handler.handler_name}.*effect="):
            check_marks([handler])

    async def endpoint(_: Any) -> None: ...

    with pytest.raises(AttributeError):
        effect_of(endpoint)
