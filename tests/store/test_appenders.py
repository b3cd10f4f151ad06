"""The functions that publish to one stream: publishing uses them, and does without where there are none."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.errors import InvalidData, InvalidInput, InvalidKey, StreamFull, UnknownStream
from headrace.model.specs import StreamSpec
from headrace.store.database.direct_statements import LARGE, MAX_STREAMS, DirectStatements
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

ALL = ["orders.publish", "orders.publish_checked", "orders.publish_one"]
APPENDERS = """
    select p.proname from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = 'headrace_streams' and p.proname like '%.publish%' order by p.proname
"""


async def appenders(database: store.Database) -> list[str]:
    return [row["proname"] for row in await database.fetch(APPENDERS)]


async def drop_appenders(database: store.Database) -> None:
    await database.fetch("select headrace_internal.drop_appenders(s) from headrace_internal.streams as s")
    assert await appenders(database) == []


async def test_a_stream_has_appenders_until_it_is_deleted(database: store.Database, declare: Declare) -> None:
    await declare()
    assert await appenders(database) == ALL
    await store.delete_stream(database, "orders", force=True)
    assert await appenders(database) == []
    await store.create_stream(database, "orders")
    assert await store.publish(database, "orders", "a", "1") == 1
    assert await appenders(database) == ALL


async def test_a_stream_with_one_message_per_key_has_its_own(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True, dedupe=True))
    assert await appenders(database) == [name.replace("orders", "latest") for name in ALL]
    for seq in (1, 1):  # by the function for all streams, and then by that of the stream, which finds it unchanged
        assert await store.publish(database, "latest", "a", "1") == seq
    assert await store.publish(database, "latest", "a", "2") == 2
    assert await store.publish_many(database, "latest", ["a", "b"], ["2", "3"]) == 1
    for size in (1, LARGE):
        keys, data = [f"k{number}" for number in range(20)], [f'"{"x" * size}"'] * 20
        headers = [None, '{"h": 1}'] * 10
        for count in (20, 0):  # the second time they are unchanged
            assert await store.publish_many(database, "latest", keys, data, headers) == count
        rows = await database.fetch(
            "select key, data, headers from headrace_streams.latest where key like 'k%' order by seq"
        )
        assert [tuple(row) for row in rows] == list(zip(keys, data, headers, strict=True))


async def test_a_stream_without_appenders_is_published_to_all_the_same(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    assert await store.publish(database, "orders", "a", "1", '{"x": "1"}') == 1
    assert list(database.direct_statements) == ["orders"]
    await drop_appenders(database)
    await publish(database, "b", "c")
    assert database.direct_statements == {"orders": None}
    before = database.statistics()["round_trips"]
    await publish(database, "d")
    assert database.statistics()["round_trips"] == before + 1, "it is not tried again"
    batch = await reader.lease()
    assert batch.keys == ["a", "b", "c", "d"]
    assert batch.headers == ['{"x": "1"}', None, None, None]


async def test_appenders_that_were_dropped_or_changed_are_made_again(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await database.fetch("""
        create or replace function headrace_streams."orders.publish"(p_keys text[], p_data json[], p_headers json[])
        returns bigint language sql as 'select 0::bigint'
    """)
    await database.fetch('drop function headrace_streams."orders.publish_one"')
    assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
    assert await appenders(database) == ALL
    await publish(database, "a", "b")
    assert await database.fetchval('select count(*) from headrace_streams."orders"') == 2


async def test_a_role_with_rights_given_by_hand_publishes_where_functions_are_not_for_everybody(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    role = f"hand_{await database.fetchval('select oid from pg_database where datname = current_database()')}"
    await database.fetch(f"create role {role}")
    try:
        for statement in (
            'revoke execute on function headrace_streams."orders.publish", headrace_streams."orders.publish_one" from public',
            f"grant usage on schema headrace, headrace_internal, headrace_streams to {role}",
            f"grant select on all tables in schema headrace_internal to {role}",
            f"grant execute on all functions in schema headrace, headrace_internal to {role}",
            f"grant select, insert on all tables in schema headrace_streams to {role}",
            f"grant usage on all sequences in schema headrace_streams to {role}",
        ):
            await database.fetch(statement)
        async with database.transaction() as connection:
            await connection.execute(f"set local role {role}")
            assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
            assert (
                await connection.fetchval("select headrace.publish_many('orders', array['b'], array['2'::json])") == 1
            )
        assert (await reader.lease()).keys == ["a", "b"]
    finally:
        await database.fetch(f"drop owned by {role}")
        await database.fetch(f"drop role {role}")


async def test_a_role_that_may_not_call_them_directly_publishes_all_the_same(
    dsn: str, database: store.Database, declare: Declare
) -> None:
    await declare()
    role = f"hand_{await database.fetchval('select oid from pg_database where datname = current_database()')}"
    await database.fetch(f"create role {role}")
    try:
        for statement in (
            'revoke execute on function headrace_streams."orders.publish", headrace_streams."orders.publish_one" from public',
            f"grant usage, create on schema headrace, headrace_internal, headrace_streams to {role}",
            f"grant select on all tables in schema headrace_internal to {role}",
            f"grant execute on all functions in schema headrace, headrace_internal to {role}",
            f"grant select, insert on all tables in schema headrace_streams to {role}",
            f"grant usage on all sequences in schema headrace_streams to {role}",
        ):
            await database.fetch(statement)
        theirs = store.Database(f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3D{role}")
        await theirs.open()
        try:
            assert theirs.owns
            for seq in (1, 2, 3):
                assert await store.publish(theirs, "orders", "a", "1") == seq
                assert await store.publish_many(theirs, "orders", [], []) == 0
        finally:
            await theirs.close()
    finally:
        await database.fetch(f"drop owned by {role}")
        await database.fetch(f"drop role {role}")


@pytest.mark.parametrize("count", [2, 40])
async def test_checks_of_messages_hold_in_appenders(database: store.Database, declare: Declare, count: int) -> None:
    await declare()
    keys, data = [f"a.{number}" for number in range(count)], ["1"] * count
    await store.publish_many(database, "orders", keys, data)
    assert list(database.direct_statements) == ["orders"]
    for wrong in ("b..c", "b ", "*", "b.>", "b" * 1025, ""):
        with pytest.raises(InvalidKey):
            await store.publish_many(database, "orders", [*keys[1:], wrong], data)
        with pytest.raises(InvalidKey):
            await store.publish(database, "orders", wrong, "1")
    for text in ('"\\u0000"', '{"x": "\\u0000"}', "{"):
        with pytest.raises(InvalidInput):
            await store.publish_many(database, "orders", keys, [*data[1:], text])
    for headers in ("[]", "1"):
        with pytest.raises(InvalidInput):
            await store.publish_many(database, "orders", keys, data, [headers, *[None] * (count - 1)])
    with pytest.raises(InvalidData, match="no data"):
        await database.fetch(
            """select headrace_streams."orders.publish"($1, $2::text[]::json[], null)""", keys, data[1:]
        )
    assert await database.fetchval('select count(*) from headrace_streams."orders"') == count
    # An escaped backslash looks like a NUL, and is none.
    await store.publish_many(database, "orders", ["a" * 1024, *keys[1:]], ['"\\\\u0000"', *data[1:]])
    assert await database.fetchval('select count(*) from headrace_streams."orders"') == 2 * count


async def test_nothing_is_left_of_a_joint_check(database: store.Database, declare: Declare) -> None:
    await declare()
    keys, data = [f"a.{number}" for number in range(40)], ["1"] * 40
    async with database.transaction() as connection:
        await connection.fetchval(
            """select headrace_streams."orders.publish"($1, $2::text[]::json[], null)""", keys, data
        )
        assert await connection.fetchval("select current_setting('headrace.checked', true)") == ""


async def test_a_stream_that_was_made_anew_is_published_to_as_it_is_now(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    for seq in (1, 2):
        assert await store.publish(database, "orders", "a", "1") == seq
    await store.delete_stream(database, "orders", force=True)
    for _ in range(2):
        with pytest.raises(UnknownStream):
            await store.publish(database, "orders", "a", "1")
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=True))
    for seq in (1, 2):
        assert await store.publish(database, "orders", "a", "1") == seq
    assert await database.fetchval('select count(*) from headrace_streams."orders"') == 1
    await store.delete_stream(database, "orders", force=True)
    await store.create_stream(database, "orders")
    assert await store.publish(database, "orders", "a", "1") == 1


async def test_a_full_stream_refuses_what_is_published_directly(database: store.Database, declare: Declare) -> None:
    await declare()
    await store.publish(database, "orders", "a", "1")
    await database.fetch(
        "update headrace_internal.streams set max_storage = 1000000, full_until = clock_timestamp() + interval '1 hour'"
    )
    with pytest.raises(StreamFull):
        await store.publish(database, "orders", "a", "1")
    with pytest.raises(StreamFull):
        await store.publish_many(database, "orders", ["a", "b"], ["1", "2"])


async def test_the_functions_of_few_streams_are_called_directly(database: store.Database) -> None:
    for number in range(4):
        await store.create_stream(database, f"s{number}")
    database.direct_statements.update(
        {f"other{number}": DirectStatements.of(f"other{number}") for number in range(MAX_STREAMS - 2)}
    )
    for number in range(4):
        for seq in (1, 2):
            assert await store.publish(database, f"s{number}", "a", "1") == seq
        assert len(database.direct_statements) <= MAX_STREAMS
    assert list(database.direct_statements) == ["s2", "s3"]


async def test_an_older_revision_of_the_schema_is_published_to(database: store.Database, declare: Declare) -> None:
    """As after a restore of a backup while the process runs: there the functions of a stream do less."""
    await declare()
    assert await store.publish(database, "orders", "a", "1") == 1
    await drop_appenders(database)
    await database.fetch("""
        create function headrace_streams."orders.append_one"(p_key text, p_data json, p_headers json)
        returns bigint language sql as 'select 0::bigint'
    """)
    assert await store.publish(database, "orders", "a", "1") == 2
    assert await store.publish_many(database, "orders", ["a", "b"], ["1", "2"]) == 2
