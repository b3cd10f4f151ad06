"""Keys and filters that no one may store: blanks, control characters, empty tokens, and wildcards. Each way to publish and
to declare is attacked with the same texts."""

from __future__ import annotations

import itertools
import json
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import App, store
from headrace.cli.demo.keys import key_of
from headrace.model.errors import InvalidFilter, InvalidInput, InvalidKey
from headrace.model.keys import check_filters, check_key
from headrace.model.specs import StreamSpec
from headrace.sources.templates import token
from tests.server.calling import Api
from tests.support.servers import run
from tests.support.words import REFUSED, texts

BAD = ["a b", " a", "a ", "a\tb", "a\nb", "a\r\n", "a\x01", "a\x1f.b", "a\x7f", "a\x85", "a\x9f", "a\u00a0b", "a\u2003b",
       "a\u2028b", "a\u2029b", "a\u3000b", "", ".", "a.", ".a", "a..b", " ", "\n"]  # fmt: skip
_KINDS: list[dict[str, Any]] = [{}, {"one_message_per_key": True}]


def taken(check: Any, text: Any) -> bool:
    try:
        check(text)
    except InvalidInput:
        return False
    return True


async def judged(dsn: str, candidates: list[str]) -> tuple[list[bool], list[bool], list[bool]]:
    """The answer of the database: whether each text is a key of a stream, of a scheduled message, and a filter."""
    connection = await asyncpg.connect(dsn)

    async def accepts(sql: str, *arguments: Any) -> bool:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.fetchval(sql, *arguments)
        except asyncpg.PostgresError as error:
            if getattr(error, "constraint_name", None) != "valid_key" and error.sqlstate != "HR004":
                raise
            return False
        finally:
            await transaction.rollback()
        return True

    try:
        await connection.execute("select headrace.create_stream('s')")
        publish = "select headrace.publish('s', $1, '1')"
        later = "select headrace.publish('s', $1, '1', p_deliver_at => now() + interval '1 hour')"
        return (
            [await accepts(publish, text) for text in candidates],
            [await accepts(later, text) for text in candidates],
            [await accepts("select headrace_internal.key_condition(array[$1])", text) for text in candidates],
        )
    finally:
        await connection.close()


@given(st.lists(texts, min_size=40, max_size=60))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_database_and_the_model_take_the_same_keys_and_filters(dsn: str, candidates: list[str]) -> None:
    run(_emptied(dsn))
    keys, scheduled, filters = run(judged(dsn, candidates))
    for text, key, later, filter_ in zip(candidates, keys, scheduled, filters, strict=True):
        assert (key, later, filter_) == (
            taken(check_key, text), taken(check_key, text), taken(check_filters, [text])
        ), repr(text)  # fmt: skip


async def _emptied(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("select headrace_internal.delete_stream(name, true) from headrace_internal.streams")
    finally:
        await connection.close()


def test_every_refused_character_is_refused_by_both(dsn: str) -> None:
    candidates = [f"a{char}b" for char in REFUSED] + REFUSED
    found = run(judged(dsn, candidates))
    assert found == ([False] * len(candidates),) * 3
    assert not any(taken(check_key, text) or taken(check_filters, [text]) for text in candidates)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", _KINDS, ids=["log", "compacted"])
async def test_no_way_to_publish_takes_such_a_key(api: Api, dsn: str, kind: dict[str, Any]) -> None:
    await api.stream(**kind)
    app = api.server.app
    connection = await asyncpg.connect(dsn)
    try:
        for key in [*BAD, "*", ">", "a.*", ">.a"]:
            await api.refused("POST", "/streams/orders/messages", {"key": key, "data": 1}, status=422)
            await api.refused(
                "POST",
                "/streams/orders/messages",
                {"messages": [{"key": "ok", "data": 1}, {"key": key, "data": 1}]},
                status=422,
            )
            await api.refused(
                "POST", "/streams/orders/messages", {"key": key, "data": 1, "delay_ms": 60_000}, status=422
            )
            with pytest.raises(InvalidKey):
                await app.publish("orders", key, 1)
            with pytest.raises(InvalidKey):
                await app.admin.send("orders", key, "1")
            for publish in (
                "select headrace.publish('orders', $1, '1')",
                "select headrace.publish('orders', $1, '1', p_message_id => 'm')",
                "select headrace.publish('orders', $1, '1', p_deliver_at => now() + interval '1 hour')",
                "insert into headrace_streams.orders (key, data) values ($1, '1')",
            ):
                with pytest.raises(asyncpg.CheckViolationError) as refusal:
                    await connection.execute(publish, key)
                assert refusal.value.constraint_name == "valid_key"
            staging = await connection.fetchval(
                "select headrace_internal.stage_write('orders', 'w')"
            )  # where Spark writes
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute(f"insert into {staging} values (gen_random_uuid(), 0, $1, '1', null)", key)
        assert (await api.get("/streams/orders/messages"))["data"] == []
    finally:
        await connection.close()


@pytest.mark.asyncio
async def test_no_way_to_declare_takes_such_a_filter(api: Api, dsn: str) -> None:
    await api.stream()
    await api.consumer()
    bad: list[Any] = [*BAD, "a.>.b", ">.a", ["a", "b c"], []]
    for filter_ in bad:
        for name in ("filter", "filter_key_pattern", "filters"):
            await api.refused("POST", "/streams/orders/consumers", {"name": "bad", name: filter_}, status=422)
            await api.refused("PATCH", "/streams/orders/consumers/ship", {name: filter_}, status=422)
        with pytest.raises((InvalidFilter, InvalidInput)):
            await api.server.app.admin.messages("orders", filter=filter_)
        await api.refused("POST", "/streams/orders/consumers/ship/replay", {"filter": filter_}, status=422)
        await api.refused("POST", "/streams/orders/consumers/ship/dead_letters/purge", {"filter": filter_}, status=422)
    connection = await asyncpg.connect(dsn)
    declare = """
        select headrace_internal.declare_consumer('orders', $2, json_build_object(
            'filters', $1::text[], 'where', $3::json, 'ordered', true, 'ack_wait', 30, 'max_ack_pending', 10, 'max_deliver', 10,
            'backoff', '{}'::json, 'on_exhausted', 'drop', 'max_waiting', 20))
    """
    conditions = (None, '{"field": "data.n", "op": "is null"}')
    try:
        for filter_ in [*bad, [None], ["a", None]]:
            filters = [filter_] if isinstance(filter_, str) else filter_
            for name, condition in itertools.product(("ship", "bad"), conditions):
                for listed in (filters, [">", *filters]) if filters else (filters, None):
                    with pytest.raises(asyncpg.PostgresError) as refusal:
                        await connection.execute(declare, listed, name, condition)
                    assert refusal.value.sqlstate == "HR004", listed
    finally:
        await connection.close()
    assert [one["name"] for one in (await api.get("/streams/orders/consumers"))["data"]] == ["ship"]


@pytest.mark.asyncio
async def test_a_key_in_a_path_or_a_query_is_checked_by_the_same_rules(api: Api) -> None:
    await api.stream()
    for key in (key for key in BAD if key.strip("./")):
        answer = await api.client.get(f"/v1/streams/orders/messages/{quote(key, safe='')}")
        assert answer.status_code == 422, repr(key)
        await api.refused("GET", "/streams/orders/messages", status=422, key_pattern=key)


@pytest.mark.parametrize("value", [*BAD, "a\0b", "\ud800", "*", ">"])
def test_capture_webhooks_and_the_demo_make_keys_of_any_value(value: str) -> None:
    """The publisher does not choose the values of these keys, so nothing is refused there."""
    check_key(f"public.t.{token(value)}")
    check_key(key_of("repo", "dir/" + value.replace("\ud800", "\udc80")))


def test_the_demo_gives_different_paths_different_keys() -> None:
    paths = ["a b", "a%20b", "a_b", "a\u00a0b", "a\nb", "a\tb", "a.b"]
    assert len({key_of("repo", path) for path in paths}) == len(paths)


@pytest.mark.asyncio
async def test_a_webhook_with_blanks_in_its_values_is_stored(api: Api) -> None:
    await api.stream()
    source = {"kind": "webhook", "name": "hook", "stream": "orders", "key": "hook.{body.name}"}
    await api.post("/sources", source, 201)
    for name in ("Paul Atreides", "line\nbreak", "\u2028", "tab\t", ""):
        answer = await api.client.post("/v1/webhook/hook", content=json.dumps({"name": name}))
        assert answer.status_code == 200
    found = (await api.get("/streams/orders/messages"))["data"]
    assert [one["key"] for one in found] == ["hook.Paul_Atreides", "hook.line_break", "hook._", "hook.tab_", "hook._"]
    await api.refused("POST", "/sources", {**source, "name": "bad", "key": "a b.{body.name}"}, status=422)


@pytest.mark.asyncio
async def test_republishing_into_another_stream_checks_keys_again(dsn: str) -> None:
    """Keys that an older table took are not carried on."""
    async with App(dsn).running() as app:
        await store.declare_stream(app.database, StreamSpec(name="old"))
        await store.declare_stream(app.database, StreamSpec(name="new"))
        await app.database.fetch("alter table headrace_streams.old drop constraint valid_message")
        await app.database.fetch("insert into headrace_streams.old (key, data) values ('a b', '1')")
        with pytest.raises(InvalidKey):
            await app.admin.republish("old", "new")
