"""A value that is not a message is refused in every way to publish it, with the same error, and no setting changes that."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.model.errors import HeadraceError, InvalidData, InvalidKey
from headrace.model.messages.publish_options import PLAIN, PublishOptions
from headrace.model.specs import StreamSpec
from headrace.store.database.direct_statements import LARGE, DirectStatements, joined_if_checked
from tests.conftest import Declare
from tests.store.test_dump_and_restore import Restore, restore
from tests.support.roles import Login, user

__all__ = ["restore"]

pytestmark = pytest.mark.asyncio

RULES: dict[str, tuple[str, str, str | None, type[HeadraceError], str]] = {
    "valid_key": ("a..b", "1", None, InvalidKey, "tokens"),
    "blank in the key": ("a b", "1", None, InvalidKey, "tokens"),
    "wildcard": ("a.*", "1", None, InvalidKey, "tokens"),
    "empty key": ("", "1", None, InvalidKey, "tokens"),
    "long key": ("a" * 1025, "1", None, InvalidKey, "1024 bytes"),
    "no_nul": ("a", '"x\\u0000"', None, InvalidData, "NUL"),
    "headers_are_objects": ("a", "1", "[]", InvalidData, "Headers must be a JSON object"),
    "null headers": ("a", "1", "null", InvalidData, "Headers must be a JSON object"),
    "headers before the key": ("a..b", "1", "3", InvalidData, "Headers must be a JSON object"),
}

SOON, EARLIER = timedelta(hours=1), timedelta(hours=-1)


@asynccontextmanager
async def session(database: store.Database) -> AsyncIterator[Any]:
    """A connection as the role of a database, without the store."""
    connection = await asyncpg.connect(database.dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def one(database: Any, key: str, data: str, headers: str | None, options: PublishOptions = PLAIN) -> None:
    await store.publish(database, "orders", key, data, headers, options)


async def many(database: Any, key: str, data: str, headers: str | None, options: PublishOptions = PLAIN) -> None:
    """The invalid message is in the middle of a batch."""
    await store.publish_many(
        database, "orders", ["k1", key, "k3"], ["1", data, "3"], [None, headers, '{"a": "b"}'], [PLAIN, options, PLAIN]
    )


async def very_many(database: Any, key: str, data: str, headers: str | None, options: PublishOptions = PLAIN) -> None:
    """So many that they are checked together."""
    keys, texts = [key, *(f"k{n}" for n in range(20))], [data, *["1"] * 20]
    await store.publish_many(database, "orders", keys, texts, [headers, *['{"a": "b"}'] * 20], [options, *[PLAIN] * 20])


WAYS: dict[str, Callable[..., Awaitable[None]]] = {
    "one": one,
    "many": many,
    "very many": very_many,
    "one with an id": lambda *args: one(*args, PublishOptions(message_id="i")),
    "many with ids": lambda *args: many(*args, PublishOptions(message_id="i")),
    "unique": lambda *args: one(*args, PublishOptions(unique_key="u")),
    "very many with ids": lambda *args: very_many(*args, PublishOptions(message_id="i")),
    "very many unique": lambda *args: very_many(*args, PublishOptions(unique_key="u")),
    "many unique": lambda *args: many(*args, PublishOptions(unique_key="u")),
    "scheduled": lambda *args: one(*args, PublishOptions(deliver_at=datetime.now(UTC) + SOON)),
    "many scheduled": lambda *args: many(*args, PublishOptions(deliver_at=datetime.now(UTC) + SOON)),
    "due": lambda *args: one(*args, PublishOptions(deliver_at=datetime.now(UTC) + EARLIER)),
    "many due": lambda *args: many(*args, PublishOptions(deliver_at=datetime.now(UTC) + EARLIER)),
}

COUNT = "select (select count(*) from headrace_streams.orders) + (select count(*) from headrace_internal.scheduled)"


async def refused_in_every_way(database: Any, counted: store.Database) -> None:
    for name, (key, data, headers, kind, phrase) in RULES.items():
        for way, publish in WAYS.items():
            with pytest.raises(kind, match=phrase):
                await publish(database, key, data, headers)
            assert await counted.fetchval(COUNT) == 0, (name, way)


@pytest.mark.parametrize("per_key", [False, True])
async def test_each_rule_is_kept_in_every_way_to_publish(database: store.Database, per_key: bool) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=per_key))
    await refused_in_every_way(database, database)
    await many(database, "a", "1", ' {"x": "y"}')
    assert await database.fetchval(COUNT) == 3


async def test_each_rule_is_kept_for_a_role_with_a_grant(database: store.Database, login: Login) -> None:
    app = await login("publish")
    await refused_in_every_way(app, database)


async def test_each_rule_is_kept_by_statements_of_your_own(database: store.Database, declare: Declare) -> None:
    """The error is that of a constraint, and names the rule."""
    await declare()
    names: dict[type[HeadraceError], str] = {InvalidKey: "valid_key"}
    async with session(database) as connection:
        for name, (key, data, headers, kind, _) in RULES.items():
            rule = names.get(kind, "no_nul" if name == "no_nul" else "headers_are_objects")
            for statement in (
                "select headrace.publish('orders', $1, $2::text::json, $3::text::json)",
                "select headrace.publish_many('orders', array['k1', $1], array['1', $2]::json[], array[null, $3]::json[])",
                "insert into headrace_streams.orders (key, data, headers) values ($1, $2::text::json, $3::text::json)",
                """insert into headrace_streams."orders.1" (seq, created_at, key, data, headers) overriding system value
                   values (1, now(), $1, $2::text::json, $3::text::json)""",
            ):
                with pytest.raises(asyncpg.CheckViolationError, match=f'violates check constraint "{rule}"') as refusal:
                    await connection.fetch(statement, key, data, headers)
                assert refusal.value.sqlstate == "23514"
                assert refusal.value.constraint_name == rule
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.copy_records_to_table(
                    "orders", schema_name="headrace_streams", columns=("key", "data", "headers"),
                    records=[("k1", "1", None), (key, data, headers)],
                )  # fmt: skip
        await store.publish(database, "orders", "a", "1")
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute("update headrace_streams.orders set key = 'a b'")
    assert await database.fetchval(COUNT) == 1


SETTINGS = ("on", "true", "1", "x", "00000000-0000-0000-0000-000000000000")


async def test_no_setting_lets_a_role_with_a_grant_pass(database: store.Database, login: Login) -> None:
    app = await login("publish")
    async with session(app) as connection:
        for value in SETTINGS:
            await connection.execute(f"set headrace.checked = '{value}'")
            for statement in (
                "select headrace.publish('orders', 'a b', '1')",
                "select headrace.publish_many('orders', array['a', 'a b'], array['1', '1']::json[])",
                "select headrace.publish_many('orders', array_fill('a'::text, '{20}') || 'a b'::text, array_fill('1'::json, '{21}'))",
                "select headrace.publish('orders', 'a b', '1', p_message_id => 'i')",
                "select headrace.publish_unique('orders', 'a b', '1', 'u')",
            ):
                with pytest.raises(asyncpg.CheckViolationError):
                    await connection.execute(statement)
    assert await database.fetchval(COUNT) == 0


async def test_the_secret_of_the_checks_never_reaches_a_role_with_a_grant(
    database: store.Database, login: Login
) -> None:
    """Neither after a publish, nor in the same statement, nor after an error in it."""
    app = await login("publish")
    secret = await database.fetchval("select secret from headrace_internal.check_secret")
    setting = "current_setting('headrace.checked', true)"
    async with session(app) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("select * from headrace_internal.check_secret")
        publish = "headrace.publish_many('orders', array_fill('a'::text, '{20}'), array_fill('1'::json, '{20}'))"
        seen = [
            *await connection.fetchrow(f"select {publish}, {setting}"),
            *await connection.fetchrow(f"select {setting}, {publish}, {setting} from generate_series(1, 3) as g"),
            await connection.fetchval(f"select {setting}"),
        ]
        await connection.execute("begin")
        await connection.execute(f"select {publish}")
        seen.append(await connection.fetchval(f"select {setting}"))
        await connection.execute(
            "do $$ begin perform headrace.publish_many('orders', array_fill('a'::text, '{20}') || null::text, array_fill('1'::json, '{21}'));"
            " exception when others then null; end $$"
        )
        seen.append(await connection.fetchval(f"select {setting}"))
        await connection.execute("rollback")
    assert secret
    assert secret not in seen


async def test_a_setting_changes_nothing_in_a_function_of_the_owner(database: store.Database, login: Login) -> None:
    """An INSERT of your own in a function that runs as the owner, called by another role."""
    app = await login("publish")
    await database.fetch(
        "create function public.put(p_key text) returns void language sql security definer"
        " as 'insert into headrace_streams.orders (key, data) values (p_key, ''1'')'"
    )
    async with session(app) as connection:
        for value in SETTINGS:
            await connection.execute(f"set headrace.checked = '{value}'")
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute("select public.put('a b')")
        await connection.execute("select public.put('a')")


async def test_rows_are_checked_again_after_a_publish_in_the_same_transaction(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    async with database.transaction() as connection:
        await connection.execute(
            "select headrace.publish_many('orders', array_fill('a'::text, '{20}'), array_fill('1'::json, '{20}'))"
        )
        with pytest.raises(asyncpg.CheckViolationError):
            async with connection.transaction():
                await connection.execute("insert into headrace_streams.orders (key, data) values ('a b', '1')")


async def test_a_role_with_rights_given_by_hand_is_checked_whatever_its_search_path_and_settings(
    database: store.Database, login: Login
) -> None:
    app = await login()
    role = user(app)
    secret = await database.fetchval("select secret from headrace_internal.check_secret")
    for statement in (
        f"grant usage on schema headrace_internal, headrace_streams to {role}",
        f"grant select on all tables in schema headrace_internal to {role}",
        f"grant insert on all tables in schema headrace_streams to {role}",
        f"create schema evil authorization {role}",
    ):
        await database.fetch(statement)
    try:
        async with session(app) as connection:
            for statement in (
                "set search_path = evil, pg_catalog",
                f"set headrace.checked = '{secret}'",
                "create domain evil.text as pg_catalog.varchar(1)",
                "create domain evil.json as pg_catalog.json",
                "create function evil.no(pg_catalog.text, pg_catalog.text) returns boolean language sql as 'select false'",
                "create operator evil.~ (leftarg = pg_catalog.text, rightarg = pg_catalog.text, function = evil.no)",
                "create function evil.octet_length(pg_catalog.text) returns int language sql as 'select 1'",
                "create function evil.strpos(pg_catalog.text, pg_catalog.text) returns int language sql as 'select 0'",
            ):
                await connection.execute(statement)
            for key, data, headers, *_ in RULES.values():
                with pytest.raises(asyncpg.CheckViolationError):
                    await connection.execute(
                        "insert into headrace_streams.orders (key, data, headers) values ($1, $2::pg_catalog.text::pg_catalog.json,"
                        " $3::pg_catalog.text::pg_catalog.json)", key, data, headers,
                    )  # fmt: skip
    finally:
        await database.fetch("drop schema evil cascade")


TOGETHER = """
select headrace_internal.check_together($1, $2::text[]::json[], $3::text[]::json[]),
       coalesce(current_setting('headrace.checked', true), '') <> '' as "set", headrace_internal.end_checked()
"""
ALONE = "select headrace_streams.is_message($1, $2::text::json, $3::text::json)"

KEYS = (
    "a",
    "a.b",
    "é",
    "*a",
    "a.*",
    ">",
    "",
    ".",
    "a.",
    ".a",
    "a..b",
    "a b",
    "\u00a0",
    "a\u3000",
    "k" * 1024,
    "k" * 1025,
)
DATA = ('"\\u0000"', '"\\\\u0000"', '"\\\\\\u0000"', '"\\u0001"', "1", ' "x"', "null")
HEADERS = (None, None, "{}", ' {"a": 1}', "[]", "null", '\n{"a":"\\u0000"}', '"{"')


async def test_messages_that_are_checked_together_are_those_that_pass_one_by_one(database: store.Database) -> None:
    draw = random.Random(1)
    passed = 0
    async with session(database) as connection, connection.transaction():
        for _ in range(1500):
            batch = [("a", "1", None)] * 20 + [
                (
                    draw.choice(KEYS[:3] if draw.random() < 0.8 else KEYS),
                    draw.choice(DATA[4:] if draw.random() < 0.8 else DATA),
                    draw.choice(HEADERS[:3] if draw.random() < 0.8 else HEADERS),
                )
                for _ in range(draw.randint(1, 4))
            ]
            together, was_set, _ = await connection.fetchrow(
                TOGETHER, *(list(column) for column in zip(*batch, strict=True))
            )
            assert together == was_set
            passed += together
            for message in batch[20:] if together else ():
                assert await connection.fetchval(ALONE, *message)
    assert passed > 100


async def test_usual_messages_are_checked_together(database: store.Database) -> None:
    """So their rows are not checked one by one, which takes longer."""
    messages = (["orders.us.42", "a" * 1024] * 10, ['{"total": 12}', "null"] * 10, [None, '{"a": "b"}'] * 10)
    async with session(database) as connection, connection.transaction():
        assert (await connection.fetchrow(TOGETHER, *messages))[1]
        assert (await connection.fetchrow(TOGETHER, messages[0], messages[1], None))[1]
        assert not (await connection.fetchrow(TOGETHER, ["a"] * 20, ['"' + "x" * 250_000 + '"'] * 20, None))[1]


# --- messages that the caller has checked


async def test_messages_that_a_process_has_checked_are_those_that_pass_one_by_one(database: store.Database) -> None:
    draw = random.Random(2)
    keys = (*KEYS, *(f"a{chr(code)}b" for code in (*range(1, 0x180), 0x1680, 0x2003, 0x2028, 0x3000, 0xFEFF)))
    passed = set[tuple[str, str, str | None]]()
    async with session(database) as connection:
        for _ in range(3000):
            batch = [
                (
                    draw.choice(keys),
                    draw.choice(DATA[4:] if draw.random() < 0.8 else DATA),
                    draw.choice(HEADERS[:3] if draw.random() < 0.8 else HEADERS),
                )
                for _ in range(draw.randint(1, 2))
            ]
            if joined_if_checked(*(list(column) for column in zip(*batch, strict=True))) is not None:
                passed.update(batch)
        assert len({key for key, _, _ in passed}) > 80
        for message in passed:
            assert await connection.fetchval(ALONE, *message)


@pytest.mark.parametrize("size", [1, LARGE])
async def test_usual_messages_are_published_as_checked(database: store.Database, declare: Declare, size: int) -> None:
    reader = await declare()
    text = f'{{"text": "{"x" * size}\\n"}}'
    batch = (["orders.us.42", "A-b_c:d/7@x"] * 10, [text, "null"] * 10, [None, '{"a": "b"}'] * 10)
    assert ".publish_checked" in DirectStatements.of("orders").for_many(*batch)[0]
    for _ in range(3):
        assert await store.publish_many(database, "orders", *batch) == 20
    leased = await reader.lease(limit=60)
    assert (leased.keys, leased.data, leased.headers) == tuple(3 * column for column in batch)


async def test_a_role_with_all_rights_given_by_hand_can_not_call_its_messages_checked(
    database: store.Database, login: Login
) -> None:
    role = user(app := await login())
    secret = await database.fetchval("select secret from headrace_internal.check_secret")
    for statement in (
        f"grant usage on schema headrace, headrace_internal, headrace_streams to {role}",
        f"grant select on all tables in schema headrace_internal to {role}",
        f"grant insert, select on all tables in schema headrace_streams to {role}",
    ):
        await database.fetch(statement)
    checked = """select headrace_streams."orders.publish_checked"($1, $2::text[]::json[], $3::text[]::json[])"""
    joined = DirectStatements.of("orders").joined
    async with session(app) as connection:
        await connection.execute(f"set headrace.checked = '{secret}'")
        for key, data, headers, *_ in RULES.values():
            batch = ["k"] * 20 + [key], ["1"] * 20 + [data], [None] * 20 + [headers]
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.fetchval(checked, *batch)
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.fetchval(joined, *("\x01".join(text or "" for text in texts) for texts in batch))
        assert await connection.fetchval(checked, ["k"], ["1"], None) == 1
        assert await connection.fetchval(joined, "k\x01k", "1\x01 2", "\x01{}") == 2
    assert await database.fetchval(COUNT) == 3


@pytest.mark.parametrize("text", ['"a\x01b"', "1\x011", "\x01", "1\x01", '"a\tb"', "", "1,1", '"'])
async def test_texts_that_are_sent_as_one_are_stored_one_by_one(
    database: store.Database, declare: Declare, text: str
) -> None:
    """Whatever they are: none of these is JSON."""
    await declare()
    for place in (0, 7, 19):
        data = ["1"] * 20
        data[place] = text
        for _ in range(3):
            with pytest.raises(InvalidData):
                await store.publish_many(database, "orders", ["k"] * 20, data)
            with pytest.raises(InvalidData):
                await store.publish_many(database, "orders", ["k"] * 20, ["1"] * 20, ["{" + text, *["{}"] * 19])
            await store.publish_many(database, "orders", ["k"] * 2, ["1"] * 2)
    assert await database.fetchval(COUNT) == 18


async def test_rows_are_checked_again_after_those_that_a_process_has_checked(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    async with database.transaction() as connection:
        await connection.fetchval(DirectStatements.of("orders").joined, "a", "1", None)
        assert await connection.fetchval("select current_setting('headrace.checked', true)") == ""
        with pytest.raises(asyncpg.CheckViolationError):
            async with connection.transaction():
                await connection.execute("insert into headrace_streams.orders (key, data) values ('a b', '1')")


@pytest.mark.long
async def test_a_message_that_is_too_large_is_refused_although_a_process_has_checked_it(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    call = (
        """select headrace_streams."orders.publish_checked"(array['a'], array[to_json(repeat('x', $1::int))], null)"""
    )
    with pytest.raises(InvalidData, match="at most 200 MB"):
        await database.fetchval(call, 200_000_000)
    assert await database.fetchval(call, 1_000_000) == 1


async def test_a_restored_dump_keeps_the_rules(database: store.Database, declare: Declare, restore: Restore) -> None:
    await declare()
    await store.publish(database, "orders", "a", "1")
    restored = await restore(database)
    assert await restored.fetchval(COUNT) == 1
    await restored.fetch("delete from headrace_streams.orders")
    await refused_in_every_way(restored, restored)
    await many(restored, "a", "1", None)
    assert await restored.fetchval(COUNT) == 3
