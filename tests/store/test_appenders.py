"""The functions that append to one stream: publishing uses them, and does without where there are none."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.errors import InvalidKey
from headrace.model.specs import StreamSpec
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

APPENDERS = """
    select p.proname from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = 'headrace_streams' and p.proname like '%.append%' order by p.proname
"""


async def appenders(database: store.Database) -> list[str]:
    return [row["proname"] for row in await database.fetch(APPENDERS)]


async def drop_appenders(database: store.Database) -> None:
    await database.fetch("select headrace_internal.drop_appenders(s) from headrace_internal.streams as s")
    assert await appenders(database) == []


async def test_a_stream_has_appenders_until_it_is_deleted(database: store.Database, declare: Declare) -> None:
    await declare()
    assert await appenders(database) == ["orders.append", "orders.append_one"]
    await store.delete_stream(database, "orders", force=True)
    assert await appenders(database) == []
    await store.create_stream(database, "orders")
    assert await store.publish(database, "orders", "a", "1") == 1
    assert await appenders(database) == ["orders.append", "orders.append_one"]


async def test_a_stream_with_one_message_per_key_has_none(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    assert await appenders(database) == []
    assert await store.publish(database, "latest", "a", "1") is not None


async def test_a_stream_without_appenders_is_published_to_all_the_same(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await drop_appenders(database)
    assert await store.publish(database, "orders", "a", "1", '{"x": "1"}') == 1
    await publish(database, "b", "c")
    batch = await reader.lease()
    assert batch.keys == ["a", "b", "c"]
    assert batch.headers == ['{"x": "1"}', None, None]


async def test_appenders_that_were_dropped_or_changed_are_made_again(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await database.fetch("""
        create or replace function headrace_streams."orders.append"(p_keys text[], p_data json[], p_headers json[])
        returns bigint language sql as 'select 0::bigint'
    """)
    await database.fetch('drop function headrace_streams."orders.append_one"')
    assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
    assert await appenders(database) == ["orders.append", "orders.append_one"]
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
            'revoke execute on function headrace_streams."orders.append", headrace_streams."orders.append_one" from public',
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


async def test_checks_of_messages_hold_in_appenders(database: store.Database, declare: Declare) -> None:
    await declare()
    with pytest.raises(InvalidKey):
        await store.publish_many(database, "orders", ["a", "b..c"], ["1", "2"])
    assert await database.fetchval('select count(*) from headrace_streams."orders"') == 0
