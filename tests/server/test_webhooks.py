"""Webhooks from the sender's side: which deliveries are accepted or refused, and that a 200 means stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.errors import UnknownSource
from headrace.server.access.scopes import Access
from headrace.server.asgi import Server
from headrace.server.callers import UNCHECKED
from headrace.server.dialects.webhooks import Webhooks
from headrace.server.engine import Engine
from headrace.server.errors import Problem
from headrace.server.http import Request
from headrace.server.options import Options
from headrace.server.transport.limits import Limits
from headrace.sources.webhook import WebhookSpec
from tests.conftest import Connect
from tests.server.calling import Api
from tests.server.delivering import JSON, OK, deliver, messages, source
from tests.sources.test_signatures import (
    GITHUB,
    GITHUB_BODY,
    GITHUB_SECRET,
    NOW,
    STANDARD,
    STANDARD_BODY,
    STANDARD_SECRET,
    STANDARD_TIME,
    signed,
)
from tests.support.waiting import until_blocked

pytestmark = pytest.mark.asyncio

# --- accepted deliveries


async def test_a_delivery_is_a_message_under_the_name_and_the_hash(api: Api) -> None:
    await api.stream()
    await source(api)
    body = b'{"b": 1,  "a": 1.50}'
    answer = await deliver(api, body, headers=JSON)
    assert (answer.status_code, answer.json()) == (200, OK)
    assert answer.headers["content-type"] == "application/json"
    [message] = await messages(api)
    assert message["key"] == f"hook.{hashlib.sha256(body).hexdigest().upper()}"
    assert message["headers"] == JSON
    text = await api.server.app.database.fetchval("select data::text from headrace_streams.orders")
    assert text == '{"b": 1,  "a": 1.50}'


async def test_a_template_makes_the_key_of_body_headers_and_query(api: Api) -> None:
    await api.stream()
    await source(
        api, "stripe", key="stripe.{body.type}.{body.id}.{header.x-mode}.{query.tenant}", keep_headers=["X-Mode"]
    )
    body = b'{"id": "evt_1", "type": "invoice.paid"}'
    answer = await deliver(api, body, "stripe", {"X-Mode": "live now"}, "?tenant=acme.eu")
    assert answer.status_code == 200
    [message] = await messages(api)
    assert message["key"] == "stripe.invoice_paid.evt_1.live_now.acme_eu"
    assert message["headers"] == {"x-mode": "live now"}


HARD = [
    b"", b"null", b'"\\u0000"', b'{"a":"\\u0000"}', b"a\0b", b"\xff\xfe", b'"\\ud800"', b"[" * 5000, b"[" * 900 + b"]" * 900,
    b"1e400", b"1" * 5000, b'{"a":1,"a":2}', "ü€😀".encode(), '"ü"'.encode("utf-16"), b"<xml/>", b"a=1&b=2", b"\x1f\x8b\x08",
    b'"' + b"\\\\" * 9 + b'u0000"',
]  # fmt: skip


async def test_the_store_takes_whatever_is_sent_and_has_it_as_it_was(api: Api) -> None:
    await api.stream()
    await source(api)
    for body in HARD:
        assert (await deliver(api, body)).json() == OK, body[:50]
    rows = await api.server.app.database.fetch("select data::text as text from headrace_streams.orders order by seq")
    assert len(rows) == len(HARD)
    for body, row in zip(HARD, rows, strict=True):
        value = json.loads(row["text"])
        assert body == row["text"].encode() or value == body.decode("utf-8", "replace") or "base64" in value


async def test_a_form_is_an_object(api: Api) -> None:
    await api.stream()
    await source(api, key="slack.{body.team}")
    answer = await api.client.post(f"{api.prefix}/webhook/hook", data={"team": "T1", "text": ["a", "b"]})
    assert answer.json() == OK
    [message] = await messages(api)
    assert (message["key"], message["data"]) == ("slack.T1", {"team": "T1", "text": ["a", "b"]})


# --- deduplication


async def test_a_delivery_that_is_repeated_is_a_message_once(api: Api) -> None:
    await api.stream()
    await source(api)
    for _ in range(3):
        assert (await deliver(api, b"{}")).json() == OK
    for _ in range(2):
        assert (await deliver(api, b"1", headers={"webhook-id": "msg_1"})).json() == OK
    assert (await deliver(api, b"1", headers={"x-github-delivery": "guid"})).json() == OK
    assert [one["data"] for one in await messages(api)] == [{}, 1, 1]


async def test_repetitions_that_arrive_together_are_a_message_once(api: Api) -> None:
    await api.stream()
    await source(api)
    answers = await asyncio.gather(*(deliver(api, b'{"a": 1}') for _ in range(20)))
    assert [answer.json() for answer in answers] == [OK] * 20
    assert len(await messages(api)) == 1


async def test_two_sources_of_a_stream_know_only_their_own_deliveries(api: Api) -> None:
    await api.stream()
    for name in ("one", "two"):
        await source(api, name)
        assert (await deliver(api, b"{}", name)).json() == OK
    assert [one["key"].split(".")[0] for one in await messages(api)] == ["one", "two"]


async def test_a_delivery_is_remembered_for_as_long_as_the_stream_remembers_ids(api: Api) -> None:
    await api.stream(dedupe_window=0)
    await source(api)
    for _ in range(2):
        assert (await deliver(api, b"{}")).json() == OK
    assert len(await messages(api)) == 2


# --- signatures


@pytest.mark.parametrize("scheme", ["standard", "github", "stripe"])
async def test_only_what_is_signed_is_taken_in(api: Api, scheme: str) -> None:
    secret, other = STANDARD_SECRET, "whsec_b3RoZXI="
    await api.stream()
    await source(api, signature=scheme, secret=secret)
    body = b'{"id": "evt_1"}'
    for headers in ({}, signed(scheme, other, body, time.time()), signed(scheme, secret, b"{}", time.time())):
        answer = await deliver(api, body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "invalid_signature")
    assert await messages(api) == []
    assert (await deliver(api, body, headers=signed(scheme, secret, body, time.time()))).json() == OK
    assert [one["data"] for one in await messages(api)] == [{"id": "evt_1"}]


@pytest.mark.parametrize("scheme", ["standard", "stripe"])
async def test_an_old_signature_is_refused(api: Api, scheme: str) -> None:
    await api.stream()
    await source(api, signature=scheme, secret=STANDARD_SECRET)
    answer = await deliver(api, b"{}", headers=signed(scheme, STANDARD_SECRET, b"{}", time.time() - 400))
    assert answer.status_code == 401
    assert "ago" in answer.json()["summary"]


async def test_a_secret_is_changed_without_losing_a_delivery(api: Api) -> None:
    await api.stream()
    await source(api, signature="github", secret="old")

    async def statuses() -> list[int]:
        found = []
        for number, secret in enumerate(("old", "new")):
            body = b"%d" % number
            found.append((await deliver(api, body, headers=signed("github", secret, body, 0))).status_code)
        return found

    assert await statuses() == [200, 401]
    changed = await api.call("PATCH", "/sources/hook", {"secrets": ["old", "new"]})
    assert changed["secrets"] == ["…", "…"]
    assert await statuses() == [200, 200]
    await api.call("PATCH", "/sources/hook", {"secret": "new"})
    assert await statuses() == [401, 200]
    await api.call("PATCH", "/sources/hook", {"secret": None, "signature": None})
    assert await statuses() == [200, 200]


# --- refused deliveries


async def test_an_unknown_source_is_404_and_so_is_one_that_was_removed_at_once(api: Api) -> None:
    await api.stream()
    for name in ("nope", "x" * 5000, "UP.PER", "%20", "%00", "%F0%9F%98%80", "%FF"):
        answer = await deliver(api, b"{}", name)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_source")
    created = await source(api)
    assert (await deliver(api, b"{}", created["id"])).status_code == 404  # by name only, because ids leak
    assert (await deliver(api, b"{}")).status_code == 200
    assert await api.call("DELETE", "/sources/hook") == {"id": created["id"], "deleted": True}
    assert (await deliver(api, b"{}")).status_code == 404


async def test_other_methods_than_post_are_405(api: Api) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        answer = await api.client.request(method, f"{api.prefix}/webhook/hook")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), method
    answer = await api.client.get(f"{api.prefix}/webhook/hook")
    assert "POST" in answer.json()["summary"]


async def test_a_body_is_as_large_as_its_source_allows(api: Api) -> None:
    await api.stream()
    await source(api, max_body=5)
    assert (await deliver(api, b"12345")).status_code == 200
    answer = await deliver(api, b"123456")
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert len(await messages(api)) == 1


async def test_a_body_is_never_larger_than_the_server_allows(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(max_body=100))
    transport = httpx.ASGITransport(app=server)
    async with app.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        api = Api(client, server)
        await source(api, max_body=1000)
        assert (await deliver(api, b"1" * 100)).status_code == 200
        assert (await deliver(api, b"1" * 101)).status_code == 413


# --- a 200 means that the message is stored


async def test_the_answer_comes_after_the_commit(api: Api, connect: Connect) -> None:
    await api.stream()
    await source(api)
    locking = await connect()
    async with locking.transaction():
        await locking.execute("lock table headrace_streams.orders in access exclusive mode")
        delivering = asyncio.create_task(deliver(api, b"{}"))
        await until_blocked(api.server.app.database, locking)
        assert not delivering.done()
    assert (await delivering).json() == OK
    assert len(await messages(api)) == 1


async def test_while_the_store_is_away_it_is_503_and_the_sender_may_come_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.stream()
    await source(api)
    database = api.server.app.database
    with monkeypatch.context() as away:
        away.setattr(database, "dsn", "postgresql://127.0.0.1:1/nowhere")
        await database.close()
        answer = await deliver(api, b"{}")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert int(answer.headers["retry-after"]) > 0
    await database.open()
    assert (await deliver(api, b"{}")).json() == OK
    assert len(await messages(api)) == 1


async def test_a_stream_that_is_full_is_503(api: Api) -> None:
    await api.stream()
    await source(api)
    await api.server.app.database.fetchval(
        "update headrace_internal.streams set max_storage = 1000000, full_until = now() + interval '1 h'"
    )
    answer = await deliver(api, b"{}")
    assert (answer.status_code, answer.json()["code"]) == (503, "stream_full")
    assert "retry-after" in answer.headers


async def test_when_the_stream_is_deleted_its_sources_are_gone(api: Api) -> None:
    await api.stream()
    await source(api)
    assert (await deliver(api, b"{}")).status_code == 200
    answer = await api.refused("DELETE", "/streams/orders", status=409)
    assert "'hook'" in answer["summary"]
    await api.server.app.admin.delete_stream("orders", force=True)  # as another server does
    assert (await deliver(api, b"1")).status_code == 404
    assert (await api.get("/sources"))["data"] == []
    await api.stream()
    assert (await deliver(api, b"1")).json()["code"] == "unknown_source"


# --- with a clock that the test controls


class Hooks:
    """Webhooks of an engine, received at a given time."""

    def __init__(self, engine: Engine) -> None:
        self.now = 0.0
        self.date = NOW
        self.engine = engine
        self.webhooks = Webhooks(
            engine,
            Access(lambda: engine.app.database),
            Limits(Options()),
            clock=lambda: self.now,
            date=lambda: self.date,
        )

    async def deliver(self, body: bytes, headers: Mapping[str, str] | None = None, name: str = "hook") -> int:
        raw = [(b"host", b"localhost"), *((key.encode(), value.encode()) for key, value in (headers or {}).items())]
        raw.append((b"content-length", b"%d" % len(body)))
        call = Request({"method": "POST", "headers": raw, "query_string": b""}, _nothing, (name,), (body,), UNCHECKED)
        try:
            await self.webhooks.expect(call)
            return (await self.webhooks.deliver(call)).status
        except Problem as problem:
            return problem.status
        except UnknownSource:
            return 404


async def _nothing() -> Any:
    raise AssertionError("the body has been read already")


@pytest_asyncio.fixture
async def hooks(engine: Engine) -> AsyncIterator[Hooks]:
    yield Hooks(engine)


async def test_the_published_examples_are_taken_in_at_their_time(hooks: Hooks) -> None:
    admin = hooks.engine.app.admin
    await admin.create_source(
        WebhookSpec(name="std", stream="orders", signature="standard", secrets=(STANDARD_SECRET,))
    )
    await admin.create_source(WebhookSpec(name="gh", stream="orders", signature="github", secrets=(GITHUB_SECRET,)))
    assert await hooks.deliver(STANDARD_BODY, STANDARD, "std") == 401
    hooks.date = STANDARD_TIME + 299
    assert await hooks.deliver(STANDARD_BODY, STANDARD, "std") == 200
    assert await hooks.deliver(GITHUB_BODY, GITHUB, "gh") == 200


async def test_changes_by_another_server_take_effect_within_two_seconds(hooks: Hooks) -> None:
    admin = hooks.engine.app.admin
    await admin.create_source(WebhookSpec(name="hook", stream="orders"))
    assert await hooks.deliver(b"1") == 200
    await admin.edit_source("hook", max_body=1)
    hooks.now += 2
    assert await hooks.deliver(b"22") == 413
    await admin.delete_source("hook")
    hooks.now += 2
    assert await hooks.deliver(b"3") == 404


async def test_a_source_is_looked_up_once_for_many_deliveries(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    await hooks.engine.app.admin.create_source(WebhookSpec(name="hook", stream="orders"))
    looked: list[list[str]] = []
    real: Callable[..., Any] = store.webhook_sources

    async def counted(executor: Any, names: list[str]) -> Any:
        looked.append(names)
        return await real(executor, names)

    monkeypatch.setattr(store, "webhook_sources", counted)
    for number in range(10):
        assert await hooks.deliver(b"%d" % number) == 200
    assert looked == [["hook"]]
