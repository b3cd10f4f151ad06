"""Sessions of the console. An attacker has a page of another site, another service on the same host, a token of its own, or
an old cookie."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace import App, store
from headrace.model.errors import StoreUnavailable, Unauthorized
from headrace.server.access import attempts
from headrace.server.access import sessions as session_cache
from headrace.server.access.attempts import Attempts
from headrace.server.access.sessions import COOKIE, Sessions, secret_of
from headrace.server.asgi import Server
from headrace.server.errors import Problem
from headrace.server.options import Options
from headrace.server.transport.clients import Clients
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

OWN = {"x-headrace-console": "1", "origin": "http://headrace", "sec-fetch-site": "same-origin"}
"""What a browser and the console's own page send with a change."""

FOREIGN: tuple[dict[str, str], ...] = (
    {},
    {"x-headrace-console": "1"},
    {"origin": "http://headrace", "sec-fetch-site": "same-origin"},
    {"x-headrace-console": "1", "origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"x-headrace-console": "1", "origin": "http://sub.headrace", "sec-fetch-site": "same-site"},
    {"x-headrace-console": "1", "origin": "https://evil.example"},
    {"x-headrace-console": "1", "origin": "http://headrace:81"},
    {"x-headrace-console": "1", "origin": "http://headrace.evil.example"},
    {"x-headrace-console": "1", "origin": "null"},
    {"x-headrace-console": "1", "sec-fetch-site": "none"},
    {"x-headrace-console": "1", "sec-fetch-site": "cross-site"},
    {"x-headrace-console": "1", "sec-fetch-site": "same-origin, cross-site"},
)
"""What a page of another origin can bring about, and requests that prove nothing."""


async def _token(api: Api, name: str = "ops", *scopes: str) -> str:
    """Make a token in the database, as an operator does."""
    made = await api.server.app.admin.create_token(name, scopes or ("admin",))
    api.server.access.changed(made.id)
    return made.token


async def _sign_in(api: Api, token: str, **headers: str) -> httpx.Response:
    return await api.client.post("/v1/session", json={"token": token}, headers={**OWN, **headers})


def _cookie(answer: httpx.Response) -> dict[str, str]:
    """Return the header by which a browser sends the cookie that an answer has set."""
    assert answer.status_code == 200, answer.text
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


@pytest_asyncio.fixture
async def signed_in(api: Api) -> AsyncIterator[dict[str, str]]:
    await api.stream()
    cookie = _cookie(await _sign_in(api, await _token(api)))
    api.client.cookies.clear()  # tests send it themselves
    yield cookie


async def test_a_session_acts_with_the_scopes_of_its_token(api: Api) -> None:
    await api.stream()
    cookie = _cookie(await _sign_in(api, await _token(api, "reader", "consume:orders")))
    me = (await api.client.get("/v1/me", headers=cookie)).json()["data"]
    assert (me["name"], me["via"], me["scopes"]) == ("reader", "session", ["consume:orders"])
    assert (await api.client.get("/v1/streams/orders", headers=cookie)).status_code == 200
    assert (await api.client.get("/v1/tokens", headers=cookie)).status_code == 403
    refused = await api.client.post("/v1/streams", json={"name": "more"}, headers={**OWN, **cookie})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_the_cookie_is_kept_from_scripts_other_sites_and_other_paths(api: Api) -> None:
    token = await _token(api)
    said = (await _sign_in(api, token)).headers["set-cookie"]
    assert {part.strip() for part in said.split(";")[1:]} >= {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert "Secure" not in said
    assert token not in said
    behind_tls = await _sign_in(api, token, origin="https://headrace")
    assert "Secure" in behind_tls.headers["set-cookie"]


async def test_no_other_site_uses_a_session_for_a_change(api: Api, signed_in: dict[str, str]) -> None:
    for page in FOREIGN:
        for method, path, body in (
            ("POST", "/v1/streams", {"name": "stolen"}),
            ("POST", "/api/streams/orders/messages", {"key": "k", "data": 1}),
            ("DELETE", "/v1/streams/orders?force=true", None),
            ("DELETE", "/v1/session", None),
        ):
            answer = await api.client.request(method, path, json=body, headers={**page, **signed_in})
            assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin"), (page, method, path)
    assert [one["name"] for one in (await api.client.get("/v1/streams", headers=signed_in)).json()["data"]] == [
        "orders"
    ]


async def test_no_other_site_reads_with_a_session(api: Api, signed_in: dict[str, str]) -> None:
    for page in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}):
        answer = await api.client.get("/v1/streams", headers={**page, **signed_in})
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin"), page


async def test_no_other_site_signs_a_browser_in(api: Api) -> None:
    """It would show its own data to the user, and take what the user enters."""
    token = await _token(api)
    for page in FOREIGN:
        answer = await api.client.post("/v1/session", json={"token": token}, headers=page)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin"), page
        assert "set-cookie" not in answer.headers


async def test_a_session_cannot_be_fixed(api: Api) -> None:
    """A cookie that an attacker has planted is never the one that signing in makes valid."""
    planted = f"hs_{'A' * 43}"
    cookie = _cookie(await _sign_in(api, await _token(api), cookie=f"{COOKIE}={planted}"))
    assert planted not in cookie["cookie"]
    assert (await api.client.get("/v1/me", headers={"cookie": f"{COOKIE}={planted}"})).status_code == 401
    again = _cookie(await _sign_in(api, await _token(api, "other"), **cookie))
    assert again != cookie
    assert (await api.client.get("/v1/me", headers=cookie)).status_code == 401  # signing in again ended it


async def test_two_cookies_are_none(api: Api, signed_in: dict[str, str]) -> None:
    """A sibling host can add a second cookie, and the order tells nothing."""
    other = f"{COOKIE}=hs_{'B' * 43}"
    for both in (f"{signed_in['cookie']}; {other}", f"{other}; {signed_in['cookie']}"):
        assert (await api.client.get("/v1/me", headers={"cookie": both})).status_code == 401


async def test_a_session_cannot_be_forged(api: Api, signed_in: dict[str, str]) -> None:
    token_id = await _token_id(api)
    for authorization in (
        f"Ambient {'0' * 64} session {token_id} inf ",
        f"Ambient  session {token_id} inf ",
        "Ambient",
        f"Bearer {signed_in['cookie'].partition('=')[2]}",
        f"Session {signed_in['cookie'].partition('=')[2]}",
    ):
        answer = await api.client.get("/v1/me", headers={"authorization": authorization})
        assert answer.status_code == 401, authorization
    for cookie in (f"{COOKIE}=", f"{COOKIE}=hs_", f"{COOKIE}={token_id}", f"{COOKIE}=hs_{'C' * 43}"):
        assert (await api.client.get("/v1/me", headers={"cookie": cookie})).status_code == 401


async def _token_id(api: Api) -> str:
    found: str = await api.server.app.database.fetchval("select id from headrace_internal.tokens limit 1")
    return found


async def test_the_database_has_only_a_digest(api: Api, signed_in: dict[str, str]) -> None:
    row = await api.server.app.database.fetchrow("select to_jsonb(s)::text as row from headrace_internal.sessions as s")
    assert signed_in["cookie"].partition("=")[2] not in row["row"]


async def test_a_session_ends_with_its_token(api: Api, signed_in: dict[str, str]) -> None:
    revoked = await api.client.delete("/v1/tokens/ops", headers={**OWN, **signed_in})
    assert revoked.status_code == 200
    answer = await api.client.get("/v1/streams", headers=signed_in)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_signing_out_ends_the_session_everywhere(api: Api, signed_in: dict[str, str]) -> None:
    ended = await api.client.delete("/v1/session", headers={**OWN, **signed_in})
    assert ended.status_code == 204
    assert "Max-Age=0" in ended.headers["set-cookie"]
    assert (await api.client.get("/v1/me", headers=signed_in)).status_code == 401
    assert await api.server.app.database.fetchval("select count(*) from headrace_internal.sessions") == 0


async def test_a_session_and_its_token_expire(api: Api) -> None:
    now = time.monotonic()
    sessions = Sessions(lambda: api.server.app.database, 60.0, lambda: now)
    await _token(api)
    short = await api.server.app.admin.create_token("short", ("admin",), expires_in=5.0)
    begun = await sessions.begin(short.id, "/")
    assert begun is not None
    assert begun[1] <= 5.0
    await api.server.app.database.fetch(
        "update headrace_internal.sessions set expires_at = clock_timestamp() - interval '1 second'"
    )
    assert await sessions.find(begun[0], "/") is None
    await api.server.app.admin.revoke_token("short")
    assert await sessions.begin(short.id, "/") is None


async def test_the_sessions_of_a_token_are_bounded(api: Api) -> None:
    await _token(api)
    token_id, database = await _token_id(api), api.server.app.database
    secrets = [bytes([number]) * 32 for number in range(6)]
    for secret in secrets:
        await store.begin_session(database, secret, token_id, "/", 60.0, most=3)
    assert [await store.session(database, secret, "/") is not None for secret in secrets] == [False] * 3 + [True] * 3


async def test_a_session_is_of_one_mount_point(dsn: str) -> None:
    """Two servers of one application may have one database. A page of the one gets nothing of the other."""
    app = App(dsn, streams=["orders"])
    first, second = Server(app, Options(allowed_hosts=("headrace",))), Server(app, Options(allowed_hosts=("headrace",)))
    web = Starlette(
        routes=[Mount("/first", app=first), Mount("/second", app=second), Mount("/first/inner", app=second)]
    )
    async with app.running():
        made = await app.admin.create_token("ops", ["admin"])
        transport = httpx.ASGITransport(app=web)
        async with httpx.AsyncClient(transport=transport, base_url="http://headrace") as client:
            answer = await client.post("/first/v1/session", json={"token": made.token}, headers=OWN)
            cookie = _cookie(answer)
            assert "Path=/first" in answer.headers["set-cookie"]
            client.cookies.clear()
            assert (await client.get("/first/v1/me", headers=cookie)).status_code == 200
            assert (await client.get("/second/v1/me", headers=cookie)).status_code == 401


async def test_messages_are_received_and_settled_with_a_token_only(api: Api, signed_in: dict[str, str]) -> None:
    """The console's cookie publishes by hand. It takes no messages away from consumers."""
    console = {**OWN, **signed_in}
    published = await api.client.post("/v1/streams/orders/messages", json={"key": "k", "data": 1}, headers=console)
    assert published.status_code == 200, published.text
    made = await api.client.post("/v1/streams/orders/consumers", json={"name": "ship"}, headers=console)
    assert made.status_code == 201
    for method, path in (
        ("POST", "/v1/streams/orders/consumers/ship/receive"),
        ("POST", "/v1/streams/orders/consumers/a%2Fb/receive"),
        ("GET", "/v1/streams/orders/consumers/ship/receive"),
        ("POST", "/api/http_pull_consumers/ship/receive"),
        ("GET", "/v1/http-consumers/ship/next"),
        ("POST", "/v1/streams/orders/consumers/ship/ack"),
        ("POST", "/v1/streams/orders/consumers/ship/nack"),
        ("POST", "/v1/streams/orders/consumers/ship/extend"),
        ("GET", "/v1/consumers/ship/receive"),
        ("POST", "/api/consumers/ship/ack"),
    ):
        answer = await api.client.request(method, path, json={} if method == "POST" else None, headers=console)
        assert answer.status_code == 401, (method, path, answer.text)
    peek = await api.client.get("/v1/streams/orders/consumers/ship/messages", headers=console)
    assert peek.status_code == 200


async def test_an_authorization_header_counts_before_a_cookie(api: Api, signed_in: dict[str, str]) -> None:
    answer = await api.client.get("/v1/me", headers={**signed_in, "authorization": "Bearer hr_nothing"})
    assert answer.status_code == 401


async def test_a_session_outlives_a_short_outage() -> None:
    """As tokens do: for a minute from when it was read."""
    now, away = 0.0, False

    class Away:
        async def fetch(self, _: str, digests: list[bytes], mounts: list[str]) -> list[dict[str, Any]]:
            if away:
                raise StoreUnavailable("away")
            until = datetime.now(UTC) + timedelta(hours=1)
            return [
                {"digest": digest, "mount": mount, "token_id": "t", "expires_at": until}
                for digest, mount in zip(digests, mounts, strict=True)
            ]

    sessions = Sessions(Away, 60.0, lambda: now)  # type: ignore[arg-type]
    assert await sessions.find("hs_x", "/") is not None
    away = True
    for later in (1.5, 30.0, 59.0):
        now = later
        assert await sessions.find("hs_x", "/") is not None
    now = 61.0
    with pytest.raises(StoreUnavailable, match="sessions does not answer"):
        await sessions.find("hs_x", "/")
    away, now = False, 63.0
    assert await sessions.find("hs_x", "/") is not None


async def test_failures_of_an_address_are_limited_and_refuse_nothing_that_is_valid(
    api: Api, signed_in: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy everyone may have the address of one who guesses."""
    monkeypatch.setattr(attempts, "BURST", 3)
    monkeypatch.setattr(attempts, "PER_SECOND", 0.001)
    monkeypatch.setattr(attempts, "ROUND", 0.01)
    guessed = {"cookie": f"{COOKIE}=hs_{'a' * 43}"}
    for _ in range(3):  # one secret counts once
        assert (await api.client.get("/v1/me", headers=guessed)).status_code == 401
    for _ in range(2):
        assert (await _sign_in(api, "hr_0123456789ab_" + "0" * 40)).status_code == 401
    refused = await _sign_in(api, "hr_0123456789ab_" + "0" * 40)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_attempts")
    assert int(refused.headers["retry-after"]) > 0
    another = await api.client.get("/v1/me", headers={"cookie": f"{COOKIE}=hs_{'b' * 43}"})
    assert another.status_code == 429
    assert (await api.client.get("/v1/me", headers=signed_in)).status_code == 200
    made = await api.server.app.admin.create_token("colleague", ("admin",))
    cookie = _cookie(await _sign_in(api, made.token))
    api.client.cookies.clear()
    api.server.identification.sessions._found.clear()  # as after a start of the server
    assert (await api.client.get("/v1/me", headers=cookie)).status_code == 200


async def test_guesses_of_an_address_that_has_failed_share_statements(
    api: Api, signed_in: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BURST", 1)
    assert (await api.client.get("/v1/me", headers={"cookie": f"{COOKIE}=hs_{'a' * 43}"})).status_code == 401
    asked: list[int] = []
    read = store.sessions

    async def counted(database: Any, wanted: Any) -> Any:
        asked.append(len(wanted))
        return await read(database, wanted)

    monkeypatch.setattr(store, "sessions", counted)
    guesses = [{"cookie": f"{COOKIE}=hs_{number:043d}"} for number in range(50)]
    answers = await asyncio.gather(*(api.client.get("/v1/me", headers=guess) for guess in guesses))
    assert {one.status_code for one in answers} == {429}
    assert len(asked) < 10
    assert (await api.client.get("/v1/me", headers=signed_in)).status_code == 200


async def test_guesses_drive_no_session_out_of_memory(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(lambda: api.server.app.database, 60.0)
    monkeypatch.setattr(session_cache, "MAX_SESSIONS", 2)
    await _token(api)
    begun = await sessions.begin(await _token_id(api), "/")
    assert begun is not None
    for number in range(5):
        assert await sessions.find(f"hs_{number:043d}", "/") is None
    assert sessions.knows(begun[0], "/")
    assert len(sessions._missing) == 2


async def test_failed_attempts_are_forgotten_and_their_addresses_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(attempts, "BURST", 2)
    monkeypatch.setattr(attempts, "ROUND", 0.001)
    monkeypatch.setattr(attempts, "MAX_ADDRESSES", 2)
    counted = Attempts(Clients(()), lambda: now)
    first, same, other = ({"client": (address, 1)} for address in ("2001:db8::1", "2001:db8::2", "192.0.2.1"))

    async def fails(scope: Any) -> bool:
        """Return whether a failure is answered as one, and not as one too many."""
        try:
            async with counted.attempt(scope):
                raise Unauthorized("It is wrong.")
        except Problem:
            return False
        except Unauthorized:
            return True

    assert [await fails(first), await fails(first)] == [True, True]
    assert not await fails(same)
    assert await fails(other)
    now = 1.0
    assert await fails(first)
    for number in range(2):
        assert await fails({"client": (f"192.0.2.{number}", 1)})
    assert await fails(first)


async def test_only_whole_cookies_count() -> None:
    good = f"hs_{'a' * 43}"
    for cookies, expected in (
        ([f"{COOKIE}={good}"], good),
        ([f"a=b; {COOKIE}={good}; c=d"], good),
        (["a=b", f"{COOKIE}={good}"], good),
        ([f"{COOKIE}={good}x"], None),
        ([f"x{COOKIE}={good}"], None),
        ([f"{COOKIE}={good}", f"{COOKIE}=hs_{'b' * 43}"], None),
        (["\xff=\xff"], None),
        ([], None),
    ):
        assert secret_of([(b"cookie", one.encode("latin-1")) for one in cookies]) == expected, cookies


async def test_one_statement_reads_all_sessions_that_are_in_use() -> None:
    """However many browsers look on."""
    now, asked = 0.0, []

    class Counting:
        async def fetch(self, _: str, digests: list[bytes], mounts: list[str]) -> list[dict[str, Any]]:
            asked.append(len(digests))
            until = datetime.now(UTC) + timedelta(hours=1)
            return [
                {"digest": digest, "mount": mount, "token_id": "t", "expires_at": until}
                for digest, mount in zip(digests, mounts, strict=True)
            ]

    sessions = Sessions(Counting, 60.0, lambda: now)  # type: ignore[arg-type]
    secrets = [f"hs_{number}" for number in range(20)]
    for moment in (0.0, 0.5, 1.5, 2.0, 3.0):
        now = moment
        for secret in secrets:
            assert await sessions.find(secret, "/") is not None
    assert asked == [1] * 20 + [20, 20]
    now = 10.0
    assert await sessions.find(secrets[0], "/") is not None
    assert asked[-1] == 20  # the others were used since the last read
    now = 20.0
    assert await sessions.find(secrets[0], "/") is not None
    assert asked[-1] == 1


async def test_a_request_of_a_session_reads_its_token_with_one_statement(
    api: Api, signed_in: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether there are tokens at all is read along with the token that was used lately."""
    now, sent = time.monotonic(), []
    monkeypatch.setattr(api.server.access._cache, "_clock", lambda: now)
    read = store.tokens_of

    async def counted(*args: Any) -> Any:
        sent.append("tokens")
        return await read(*args)

    async def unexpected(*_: Any) -> bool:
        raise AssertionError("the table of tokens is asked for nothing else")

    for _ in range(2):  # the second one uses what the first one has read
        assert (await api.client.get("/v1/me", headers=signed_in)).status_code == 200
    monkeypatch.setattr(store, "tokens_of", counted)
    monkeypatch.setattr(store, "any_token", unexpected)
    for count in range(1, 4):
        now += 1.5
        assert (await api.client.get("/v1/me", headers=signed_in)).status_code == 200
        assert sent == ["tokens"] * count
