"""A web page that the owner of an open server visits. The page's requests reach the server, also under a
name of the page that resolves to loopback. Tokens are the full protection, and without one the server
refuses what a page has caused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import fastapi
import httpx
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.admin import Admin
from headrace.model.errors import ConfigurationError
from headrace.server.access.origins import OriginPolicy
from headrace.server.access.scopes import Access
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"

FOREIGN: dict[str, dict[str, str]] = {
    "another site": {"origin": "https://evil.example"},
    "a sandboxed frame": {"origin": "null"},
    "another port of this machine": {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    "the same name under another port": {"origin": "http://headrace:81"},
    "a name with the server's as its end": {"origin": "http://evil.headrace"},
    "a name with the server's as its start": {"origin": "http://headrace.evil.example"},
    "no origin, as in a link": {"sec-fetch-site": "cross-site"},
    "a subdomain": {"sec-fetch-site": "same-site"},
    "two origins": {"origin": "http://headrace", "Origin": "https://evil.example"},
    "an unknown site": {"sec-fetch-site": "same-origin, cross-site"},
}

HOSTS = (
    "evil.example", "evil.example:7376", "localhost.evil.example", "127.0.0.1.nip.io", "headrace.evil.example", "localhost.",
    "10.1.2.3", "0.0.0.0", "[::]", "[2001:db8::1]", "2130706433", "0x7f.1", "localhost@evil.example", "evil.example#localhost",
    "", " ", "localhost, evil.example", "[::1].evil.example", "[fe80::1%25lo]", "127.0.0.1:7376:1", "évil.example",
)  # fmt: skip


@pytest_asyncio.fixture
async def orders(api: Api) -> Api:
    """A server without tokens that has a stream, a pull consumer and a message."""
    await api.stream()
    await api.consumer()
    await api.publish(("k", {"id": 1}))
    return api


async def _received(api: Api) -> int:
    """Receive what the consumer has left, as a client that is no page."""
    return len(await api.receive())


def _headers(pairs: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs.items()]


CHANGES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/streams", {"name": "stolen"}),
    ("POST", "/streams/orders/messages", {"key": "k", "data": 2}),
    ("POST", "/streams/orders/consumers", {"name": "spy", "push": {"url": "https://evil.example/take"}}),
    ("POST", "/http-consumers", {"name": "spy", "stream": "orders"}),
    ("POST", "/streams/orders/consumers/ship/receive", {}),
    ("POST", "/streams/orders/consumers/ship/messages", {}),
    ("POST", "/http_pull_consumers/ship/receive", {}),
    ("POST", "/streams/orders/consumers/ship/pause", None),
    ("POST", "/streams/orders/consumers/ship/seek", {"to": "end"}),
    ("POST", "/streams/orders/consumers/ship/dead_letters/purge", {"key": "k"}),
    ("POST", "/source-check", {"kind": "postgres", "name": "t", "stream": "orders", "tables": ["public.t"]}),
    ("POST", "/tokens", {"name": "lock-out", "scopes": ["admin"]}),
    ("DELETE", "/streams/orders?force=true", None),
)

READS = (
    "/v1/streams", "/v1/live/snapshot", "/v1/tokens", "/v1/streams/orders/messages", "/v1/streams/orders/consumers/ship/messages",
    "/v1/streams/orders/consumers/ship/receive", "/v1/http_pull_consumers/ship/receive", "/v1/http-consumers/ship/next",
    "/v1/nowhere", "/metrics", "/ready", "/docs", "/openapi.json",
)  # fmt: skip


async def _refuses_all(api: Api, code: str, headers: list[tuple[bytes, bytes]]) -> None:
    for method, path, body in CHANGES:
        answer = await api.client.request(method, api.prefix + path, json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, code), (method, path, headers, answer.text)
    for path in READS:
        answer = await api.client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, code), (path, headers, answer.text)


async def test_a_foreign_page_changes_and_reads_nothing(orders: Api) -> None:
    for page in FOREIGN.values():
        await _refuses_all(orders, "cross_origin", [*_headers(page), (b"content-type", b"text/plain")])
    assert (await orders.get("/tokens")) == {"data": []}
    assert [one["name"] for one in (await orders.get("/streams"))["data"]] == ["orders"]
    assert [one["name"] for one in (await orders.get("/streams/orders/consumers"))["data"]] == ["ship"]
    assert await _received(orders) == 1


async def test_a_name_that_resolves_to_loopback_reaches_nothing(orders: Api) -> None:
    for host in HOSTS:
        headers = [(b"host", host.encode("latin-1")), (b"sec-fetch-site", b"same-origin")]
        await _refuses_all(orders, "host_not_allowed", headers)
    assert await _received(orders) == 1


async def test_loopback_and_configured_hosts_are_let_in(orders: Api) -> None:
    for host in ("localhost", "LOCALHOST:7376", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:7376", "headrace"):
        for headers in (
            {},
            {"origin": f"http://{host.lower()}", "sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
        ):
            answer = await orders.client.get("/v1/streams", headers={"host": host, **headers})
            assert answer.status_code == 200, answer.text


async def test_a_second_host_counts_too(orders: Api) -> None:
    for hosts in ((b"localhost", b"evil.example"), (b"evil.example", b"localhost")):
        answer = await orders.client.get("/v1/streams", headers=[(b"host", host) for host in hosts])
        assert answer.status_code == 403


async def test_the_address_that_was_connected_to_is_no_name() -> None:
    """Probes know a server by its address only. No name that a page chooses resolves into an address in the header."""
    policy = OriginPolicy()
    scope = {"method": "GET", "server": ("10.1.2.3", 7376), "http_version": "1.1", "scheme": "http"}
    assert policy.violation({**scope, "headers": [(b"host", b"10.1.2.3:7376")]}) is None
    assert policy.violation({**scope, "headers": [(b"host", b"10.1.2.4:7376")]}) is not None
    named = {**scope, "server": ("evil.example", 7376)}
    assert policy.violation({**named, "headers": [(b"host", b"evil.example")]}) is not None
    assert policy.violation({**scope, "headers": []}) is not None
    assert policy.violation({**scope, "http_version": "1.0", "headers": []}) is None


@pytest.mark.parametrize("host", ["", "*", "http://a", "a:80", "a b", "a/b", "[::1", "*.example.com", "é"])
async def test_a_host_that_can_not_be_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed host"):
        OriginPolicy([host])


RECEIVES = (
    "/v1/streams/orders/consumers/ship/receive", "/api/streams/orders/consumers/ship/receive",
    "/v1/streams/orders/consumers/ship/rec%65ive/", "/v1/http_pull_consumers/ship/receive",
    "/v1/http_pull_consumers/orders%3Aship/receive", "/v1/http-consumers/ship/next",
)  # fmt: skip


async def test_an_image_or_a_link_receives_nothing(orders: Api) -> None:
    for path in RECEIVES:
        for headers in (
            {"user-agent": FIREFOX},  # browsers before Fetch Metadata
            {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},  # a prefetch of what was typed
            {
                "sec-fetch-site": "same-origin",
                "sec-fetch-mode": "no-cors",
            },  # an image in the content of a mounting page
            {"sec-fetch-site": "same-origin"},
            {"origin": "http://headrace"},
        ):
            answer = await orders.client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin"), (path, headers, answer.text)
    assert (await orders.client.get("/v1/streams", headers={"user-agent": FIREFOX})).status_code == 200
    own = {"user-agent": FIREFOX, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert len((await orders.client.get(RECEIVES[0], headers=own)).json()["data"]) == 1
    node = {"user-agent": "node", "sec-fetch-mode": "cors"}  # Node's fetch sends one of the headers of browsers
    assert (await orders.client.get(RECEIVES[0], headers=node)).status_code == 200


SIMPLE = ("text/plain", "TEXT/PLAIN; charset=utf-8", "multipart/form-data; boundary=a", "text/html", "text/json")


async def test_bodies_that_a_form_can_send_change_nothing(orders: Api) -> None:
    body = b'{"key": "k", "data": 2}'

    async def send(kind: str | None, **headers: str) -> int:
        given = {"user-agent": "curl/8.14", **headers, **({} if kind is None else {"content-type": kind})}
        return (await orders.client.post("/v1/streams/orders/messages", content=body, headers=given)).status_code

    for kind in SIMPLE:
        assert await send(kind) == 415, kind
        assert await send(kind, origin="http://headrace") == 415, kind
    for kind in (None, "application/x-www-form-urlencoded", "", "application/octet-stream"):
        assert await send(kind) == 200, kind  # curl -d, and programs that name no type
        for browser in ({"origin": "http://headrace"}, {"sec-fetch-site": "same-origin"}, {"user-agent": FIREFOX}):
            assert await send(kind, **browser) == 415, (kind, browser)
    for kind in ("application/json", "Application/JSON;charset=utf-8", "application/vnd.api+json"):
        assert await send(kind, origin="http://headrace", **{"sec-fetch-site": "same-origin"}) == 200, kind
    answer = await orders.client.post("/v1/streams/orders/consumers/ship/pause", headers={"origin": "http://headrace"})
    assert answer.status_code == 200  # no body


async def test_with_a_token_pages_and_names_do_not_matter(orders: Api) -> None:
    created = await orders.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201)
    token = {"authorization": f"Bearer {created['token']}"}
    page = {
        "host": "shop.example.com",
        "origin": "https://evil.example",
        "content-type": "text/plain",
        "sec-fetch-site": "cross-site",
    }
    for method, path, body in CHANGES:
        answer = await orders.client.request(method, orders.prefix + path, json=body, headers=page)
        assert answer.status_code == 401, (method, path)
    for path in READS:
        status = (await orders.client.get(path, headers=page)).status_code
        assert status == (200 if path in ("/ready", "/docs", "/openapi.json") else 401), path
    assert (await orders.client.get("/v1/streams", headers={**page, **token})).status_code == 200
    given = {**page, **token}
    receive = "/v1/streams/orders/consumers/ship/receive"
    assert len((await orders.client.get(receive, headers=given)).json()["data"]) == 1


async def test_no_answer_lets_another_origin_read_it(orders: Api) -> None:
    preflight = {
        "origin": "http://headrace",
        "access-control-request-method": "DELETE",
        "access-control-request-headers": "authorization",
    }
    for path in (
        "/v1/streams",
        "/v1/streams/orders/messages",
        "/v1/tokens",
        "/docs",
        "/openapi.json",
        "/metrics",
        "/ready",
    ):
        for method in ("GET", "OPTIONS"):
            answer = await orders.client.request(method, path, headers=preflight)
            assert not [name for name in answer.headers if name.startswith("access-control-")], (method, path)


async def test_probes_learn_of_life_under_any_name(orders: Api) -> None:
    answer = await orders.client.get("/health", headers={"host": "10.9.8.7:7376"})
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


# --- webhooks


async def test_webhooks_are_judged_by_their_signatures(orders: Api) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signed = {"kind": "webhook", "name": "signed", "stream": "orders", "signature": "github", "secrets": [secret]}
    await orders.post("/sources", signed, 201)
    await orders.post("/sources", {"kind": "webhook", "name": "unsigned", "stream": "orders"}, 201)
    page = {"origin": "https://evil.example", "content-type": "text/plain"}
    tunnel = {"host": "tunnel.example"}
    for headers in (page, tunnel):  # a tunnel of a developer has its own name
        answer = await orders.client.post("/v1/webhook/signed", content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_signature")
        for name in ("unsigned", "unknown"):
            answer = await orders.client.post(f"/api/webhook/{name}", content=b"{}", headers=headers)
            assert answer.status_code == 403, (name, answer.text)
    plain = {"content-type": "application/x-www-form-urlencoded"}  # senders choose any
    assert (await orders.client.post("/v1/webhook/unsigned", content=b"a=1", headers=plain)).status_code == 200
    await orders.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201)
    assert (await orders.client.post("/v1/webhook/unsigned", content=b"{}", headers=page)).status_code == 403
    assert (await orders.client.post("/v1/webhook/unsigned", content=b"{}", headers=tunnel)).status_code == 200


# --- mounted, and opened again


@pytest_asyncio.fixture
async def mounted(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a FastAPI application that has the API below a path."""
    app = App(dsn, streams=["orders"])
    web = fastapi.FastAPI()
    web.mount("/headrace", Server(app, Options(allowed_hosts=("shop.example.com",))))
    async with (
        app.running(),
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="https://shop.example.com/headrace") as client,
    ):
        yield client


async def test_a_mounted_server_has_the_same_checks(mounted: httpx.AsyncClient) -> None:
    body = {"key": "k", "data": 1}
    assert (await mounted.post("/v1/streams/orders/messages", json=body)).status_code == 200
    for headers in (
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "http://shop.example.com"},  # a page that was changed on its way, of the site's plain HTTP
        {"sec-fetch-site": "same-site"},
    ):
        assert (await mounted.post("/v1/streams/orders/messages", json=body, headers=headers)).status_code == 403, (
            headers
        )
        assert (await mounted.get("/ready", headers=headers)).status_code == 403, headers
    own = {"origin": "https://shop.example.com", "sec-fetch-site": "same-origin"}
    assert (await mounted.post("/v1/streams/orders/messages", json=body, headers=own)).status_code == 200


class _Opened:
    """The access checks of a server, with a clock that the test moves."""

    def __init__(self, database: store.Database, **options: Any) -> None:
        self.now = 0.0
        self.access = Access(lambda: database, clock=lambda: self.now, **options)


async def test_revoking_opens_nothing_and_deleting_does(database: store.Database) -> None:
    admin, server = Admin(database), _Opened(database)
    token = (await admin.create_token("ops", ["admin"])).token
    header = f"Bearer {token}"
    assert (await server.access.caller(header)).via == "token"
    await admin.revoke_token("ops")
    server.now += 2.5
    assert not await server.access.is_open()
    assert await store.delete_tokens(database) == 1
    server.now += 2.5
    assert await server.access.is_open()
    assert (await server.access.caller(header)).via == "open"  # the client needs no token, and may still send one
    await admin.create_token("ops", ["admin"])  # the name is free again
    server.now += 2.5
    assert not await server.access.is_open()


async def test_a_server_that_other_machines_reach_stays_closed(database: store.Database) -> None:
    server = _Opened(database, always_closed=True)
    assert not server.access.open
    assert not await server.access.is_open()
    with pytest.raises(Exception, match="no access token"):
        await server.access.caller(None)
