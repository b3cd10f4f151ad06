"""Answers contain nothing of the database: no address, user or name, and no words of Postgres or of its driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.model.errors import InvalidData
from headrace.server.asgi import Server
from headrace.server.errors import MAX_LOGGED, MAX_LOGGED_TEXT, RefusalLog
from tests.server.calling import Api
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

AWAY = "postgresql://127.0.0.1:1/hidden_name?user=hidden_user&password=hidden_word"
WORDS = (
    "hidden",
    "127.0.0.1",
    "asyncpg",
    "connect call",
    "postgresql",
    "errno",
    "headrace.",
    "$1",
    "relation",
    "constraint",
)


def told(answer: httpx.Response) -> list[str]:
    """The words that the answer should not have."""
    text = answer.text.lower()
    return [word for word in WORDS if word in text]


@pytest_asyncio.fixture
async def away(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """A server whose database is gone, with a webhook, a consumer and a message."""
    await api.stream()
    await api.consumer()
    await api.publish(("k", 1))
    await api.post("/sources", {"kind": "webhook", "name": "hooks", "stream": "orders"}, 201)
    database = api.server.app.database
    with monkeypatch.context() as patch:
        patch.setattr(database, "dsn", AWAY)
        await database.close()
        yield api
    await database.open()


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/streams", None),
    ("POST", "/streams", {"name": "more"}),
    ("POST", "/streams/orders/messages", {"key": "k", "data": 1}),
    ("GET", "/streams/orders/messages", None),
    ("GET", "/streams/orders/consumers/ship", None),
    ("POST", "/streams/orders/consumers/ship/receive", {"batch_size": 1}),
    ("POST", "/streams/orders/consumers/ship/seek", {"to": "start"}),
    ("GET", "/http_pull_consumers/ship/receive", None),
    ("GET", "/http-consumers/ship/next", None),
    ("POST", "/webhook/hooks", {}),
    ("GET", "/tokens", None),
    ("GET", "/live/snapshot", None),
    ("GET", "/sources", None),
]


async def test_while_the_database_is_away_nobody_learns_where_it_is(
    away: Api, caplog: pytest.LogCaptureFixture
) -> None:
    for method, path, body in CALLS:
        answer = await away.answer(method, path, body)
        assert (answer.status_code, told(answer)) == (503, []), (path, answer.text)
        assert "retry-after" in answer.headers
    assert "hidden_word" not in caplog.text
    assert logged(caplog, "request refused by the database")
    answer = await away.client.get("/ready")
    assert answer.status_code == 503
    assert "hidden_word" not in answer.text


async def test_a_stranger_learns_of_ready_no_more_than_whether(api: Api) -> None:
    await api.stream()
    admin = (await api.post("/tokens", {"name": "ops", "scopes": ["admin"]}, 201))["token"]
    api.client.headers["authorization"] = f"Bearer {admin}"
    lesser = (await api.post("/tokens", {"name": "shop", "scopes": ["admin:orders", "consume"]}, 201))["token"]
    database = api.server.app.database
    await database.fetch(
        "insert into headrace_internal.migrations (version, name, serves_from) values (99, 'of tomorrow', 99)"
    )
    for token in (None, lesser, "hr_000000000000_00000000000000000000000000000000"):
        api.client.headers.pop("authorization", None)
        if token is not None:
            api.client.headers["authorization"] = f"Bearer {token}"
        answer = await api.client.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"ready": False})
    api.client.headers["authorization"] = f"Bearer {admin}"
    answer = await api.client.get("/ready")
    assert answer.status_code == 503
    assert "has revision 99" in answer.json()["reasons"][0]


async def test_a_server_that_starts_without_its_database_tells_a_stranger_nothing(dsn: str) -> None:
    server = Server(App(AWAY))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://localhost") as client:
        answer = await client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False})


async def test_refusals_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)
    for number in range(1000):
        refusals.refused(InvalidData(f"{number} " + "x" * 100_000))
    assert len(caplog.records) == MAX_LOGGED
    assert len(caplog.text) < MAX_LOGGED * (MAX_LOGGED_TEXT + 200)
    now = 1.0
    refusals.refused(InvalidData("again"))
    assert logged(caplog, "more requests refused by the database", requests=1000 - MAX_LOGGED)


STATES = ("42501", "28P01", "3D000", "53100", "23505", "23514", "23503", "22003", "22P02", "22P05", "22012", "40001",
          "P0001", "0A000", "54000", "53300", "57014", "42704")  # fmt: skip


async def test_no_error_of_postgres_is_told_in_its_words(
    api: Api, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.stream()
    database = api.server.app.database
    for number, state in enumerate(STATES):
        monkeypatch.setattr("headrace.server.errors._refusals", RefusalLog())
        caplog.clear()
        await database.fetch(
            f"""create or replace function public.spoil() returns trigger language plpgsql as $$ begin
                  raise exception 'hidden words of relation headrace.streams' using errcode = '{state}',
                        detail = 'hidden detail', hint = 'hidden hint', constraint = 'hidden_constraint';
                end $$"""
        )
        if number == 0:
            await database.fetch(
                "create trigger spoil before insert on headrace_streams.orders for each row execute function public.spoil()"
            )
        answer = await api.answer("POST", "/streams/orders/messages", {"key": "k", "data": 1})
        assert answer.status_code in (422, 500, 503), (state, answer.text)
        assert told(answer) == [], state
        assert "hidden words" in caplog.text, state
        if answer.status_code == 500:
            error_id = answer.json()["summary"].rstrip(".").split()[-1]
            assert logged(caplog, "request failed unexpectedly", id=error_id), state


ODD: list[tuple[str, str, Any]] = [
    ("POST", "/streams/orders/messages", {"key": "k", "data": "\0"}),
    ("POST", "/streams/orders/messages", {"key": "k", "data": 1, "headers": {"x": "\0"}}),
    ("POST", "/streams/orders/messages", {"key": "k", "data": 1, "delay_ms": 1e300}),
    ("POST", "/streams/orders/messages", {"key": "k", "data": 1, "deliver_at": "9999-12-31T23:59:59Z"}),
    ("POST", "/streams/orders/messages", {"key": "k", "data": 1, "message_id": "\0"}),
    ("POST", "/streams/orders/consumers/ship/seek", {"to": 10**30}),
    ("POST", "/streams/orders/consumers/ship/seek", {"to": -(2**63)}),
    ("POST", "/streams/orders/consumers/ship/seek", {"to": 2**63}),
    ("POST", "/streams/orders/consumers/ship/replay", {"filter": ">", "where": "data.a matches '('"}),
    ("POST", "/streams/orders/consumers/ship/pause", {"until": "9999-12-31T23:59:59+23:59"}),
    ("GET", "/streams/orders/messages?limit=99999999999999999999", None),
    ("GET", "/streams/orders/messages/%00", None),
    ("GET", "/streams/%00", None),
    ("GET", "/streams/orders/consumers/%00", None),
    ("POST", "/streams", {"name": "x\0"}),
    ("POST", "/streams", {"name": "a" * 500}),
    ("POST", "/streams", {"name": "x", "max_storage": 2**70}),
    ("POST", "/tokens", {"name": "x\0", "scopes": ["admin"]}),
    ("GET", "/streams/orders/consumers/ship/dead_letters?after=99999999999999999999999", None),
    ("GET", "/streams/orders/messages?before_seq=99999999999999999999999&key_pattern=%00", None),
]  # fmt: skip


async def test_odd_values_are_refused_in_our_words(api: Api) -> None:
    await api.stream()
    await api.consumer()
    for method, path, body in ODD:
        answer = await api.answer(method, path, body)
        assert answer.status_code < 500, (path, body, answer.text)
        assert told(answer) == [], (path, body)
