"""Slots and publications: created, adopted, refused and lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import publications, slots
from headrace.sources.postgres.database.catalog import load_tables
from headrace.sources.postgres.database.publications import find_publication, tables_missing_from
from headrace.sources.postgres.errors import SlotLost, SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.connections import (
    APPLICATION,
    as_role,
    connected,
    ensure_publication,
    fresh,
    read_on,
    replicating,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    """A connection to a database with tables."""
    async with connected(empty_dsn) as connection:
        await connection.query("""
            create table orders (id int primary key, note text);
            create table lines (id int primary key);
            create table keyless (note text);
            create publication all_of_it for table orders
        """)
        yield connection


def spec(*tables: str, **settings: Any) -> PostgresSpec:
    return PostgresSpec(name="shop", stream="shop", tables=tables or ("public.orders",), **settings)


# --- the identity of the server


async def test_a_server_says_which_it_is_and_where(connection: SourceConnection) -> None:
    server = await slots.identify_server(connection)
    ((system_id,),) = await connection.query("select system_identifier from pg_control_system()")
    assert (server.system_id, server.timeline, server.in_recovery) == (system_id, 1, False)
    assert server.version == connection.version
    await connection.query("create table more (id int)")
    assert (await slots.identify_server(connection)).position > server.position


HISTORY = """\
1\t0/3000148\tno recovery target specified

2\tA/16B374D8\tbefore 2026-01-01 00:00:00+00
"""


async def test_a_history_says_where_the_timelines_parted() -> None:
    assert slots.history_switch(HISTORY, 1, 3) == 0x3000148
    assert slots.history_switch(HISTORY, 2, 3) == (0xA << 32) + 0x16B374D8


async def test_a_timeline_that_is_not_in_the_history_means_to_start_anew() -> None:
    with pytest.raises(
        SourceStopped, match=r"on timeline 5, which does not descend from the captured timeline 4.*fresh backfill"
    ):
        slots.history_switch(HISTORY, 4, 5)


async def test_a_server_without_that_timeline_says_so(connection: SourceConnection, empty_dsn: str) -> None:
    with pytest.raises(SourceStopped, match="does not return its history since timeline 1"):
        await slots.switch_point(empty_dsn, 1, 77)


# --- names


async def test_a_slot_is_named_after_its_source() -> None:
    assert slots.slot_name("my-orders", "1B4E28BA-2fa1-11d2-883f-0016d3cca427") == "headrace_my_orders_1b4e28ba"


async def test_the_longest_name_of_a_source_makes_a_name_that_postgres_takes_whole() -> None:
    name = slots.slot_name("a" * 48, "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    assert len(name) == 63
    assert name.endswith("a_1b4e28ba")


# --- publications


async def test_a_publication_is_made_once_and_kept_as_the_settings_are(connection: SourceConnection) -> None:
    name = fresh()
    await ensure_publication(connection, spec(), name)
    made = await _oid(connection, name)
    assert await _published(connection, name) == ["orders"]
    await ensure_publication(connection, spec(), name)
    await ensure_publication(connection, spec("public.orders", "public.lines", actions=("insert", "delete")), name)
    assert await _published(connection, name) == ["lines", "orders"]
    found = await find_publication(connection, name)
    assert found is not None
    assert (found.actions, found.via_root, found.owned) == ({"insert", "delete"}, True, True)
    assert await _oid(connection, name) == made
    await publications.drop_publication(connection, name)
    await publications.drop_publication(connection, name)
    assert await find_publication(connection, name) is None


async def test_a_correct_publication_is_not_written_again(connection: SourceConnection) -> None:
    name = fresh()
    await ensure_publication(connection, spec(), name)
    query = "select xmin::text from pg_publication where pubname = $1 union all select r.xmin::text from pg_publication_rel as r"
    before = await connection.query(query, name)
    await ensure_publication(connection, spec(), name)
    assert await connection.query(query, name) == before


async def test_a_publication_that_is_given_is_looked_at_and_not_changed(connection: SourceConnection) -> None:
    await ensure_publication(connection, spec(publication="all_of_it"), "all_of_it")
    with pytest.raises(SourceStopped, match=r"all_of_it, owned by .*, lacks public\.lines") as stopped:
        await ensure_publication(
            connection, spec("public.orders", "public.lines", publication="all_of_it"), "all_of_it"
        )
    assert stopped.value.mend == "alter publication all_of_it add table only public.lines;"
    await connection.query(stopped.value.mend)
    await ensure_publication(connection, spec("public.orders", "public.lines", publication="all_of_it"), "all_of_it")


async def test_a_publication_that_is_given_has_to_publish_what_is_asked_for(connection: SourceConnection) -> None:
    await connection.query("""create publication "Only news" for all tables with (publish = 'insert')""")
    await ensure_publication(connection, spec(publication="Only news", actions=("insert",)), "Only news")
    with pytest.raises(SourceStopped, match="does not publish these actions: update, delete, truncate") as stopped:
        await ensure_publication(connection, spec(publication="Only news"), "Only news")
    assert stopped.value.mend is not None
    await connection.query(stopped.value.mend)
    await ensure_publication(connection, spec(publication="Only news"), "Only news")


async def test_a_publication_that_is_given_and_missing_comes_with_its_statement(connection: SourceConnection) -> None:
    with pytest.raises(SourceStopped, match="no publication nowhere") as stopped:
        await ensure_publication(connection, spec(publication="nowhere"), "nowhere")
    assert stopped.value.mend is not None
    await connection.query(stopped.value.mend)
    await ensure_publication(connection, spec(publication="nowhere"), "nowhere")


async def test_a_table_of_which_updates_would_be_refused_is_not_published(connection: SourceConnection) -> None:
    name = fresh()
    with pytest.raises(SourceStopped, match=r"public\.keyless has no primary key") as stopped:
        await ensure_publication(connection, spec("public.keyless", group=("note",)), name)
    await ensure_publication(connection, spec("public.keyless", group=("note",), actions=("insert",)), name)
    await connection.query("insert into keyless values ('one'); update keyless set note = 'two'")  # still possible
    assert stopped.value.mend == "alter table public.keyless replica identity full;"
    await connection.query(stopped.value.mend)
    await ensure_publication(connection, spec("public.keyless", group=("note",)), name)


async def test_partitions_are_covered_by_their_root_and_the_root_by_all_of_them(connection: SourceConnection) -> None:
    await connection.query("""
        create table events (id int primary key) partition by range (id);
        create table events_1 partition of events for values from (0) to (10);
        create table events_2 partition of events for values from (10) to (20);
        create publication one for table events_1; create publication two for table events_1, events_2;
        create publication root for table events
    """)
    tables = (await load_tables(connection, ["public.events"])).values()
    assert [table.name for table in await tables_missing_from(connection, "one", tables)] == ["public.events"]
    assert await tables_missing_from(connection, "two", tables) == []
    assert await tables_missing_from(connection, "root", tables) == []


async def test_a_table_that_inherits_is_not_published(connection: SourceConnection) -> None:
    name = fresh()
    await connection.query("create table late (at timestamp) inherits (orders)")
    await ensure_publication(connection, spec(), name)
    assert await _published(connection, name) == ["orders"]
    await ensure_publication(connection, spec("public.orders", "public.late", actions=("insert",)), name)
    assert await _published(connection, name) == ["late", "orders"]


async def test_a_table_that_is_locked_is_waited_for_only_so_long(connection: SourceConnection, empty_dsn: str) -> None:
    async with await SourceConnection.connect(empty_dsn, application_name="other") as other:
        await other.query("begin; lock table orders in access exclusive mode")
        with pytest.raises(SourceUnavailable, match="lock timeout"):
            await ensure_publication(connection, spec(), fresh(), lock_timeout=0.05)
    assert await connection.query("select 1") == [("1",)]


# --- slots


async def test_a_slot_is_made_once_and_then_goes_on_from_where_it_is(connection: SourceConnection) -> None:
    name = fresh()
    position = await _ensure(connection, name)
    assert await _ensure(connection, name, expected=position) == position
    assert await _ensure(connection, name, expected=position + 100) == position
    found = await slots.find_slot(connection, name)
    assert found is not None
    assert (found.plugin, found.in_this_database, found.lost, found.pid) == ("pgoutput", True, False, None)


async def test_a_slot_of_ours_is_made_anew_when_nothing_is_captured_as_yet(connection: SourceConnection) -> None:
    name = fresh()
    position = await _ensure(connection, name)
    await connection.query("create table written_meanwhile (id int)")
    assert await _ensure(connection, name) > position


async def test_a_standby_may_keep_a_copy_of_the_slot_from_version_17_on(connection: SourceConnection) -> None:
    name = fresh()
    await _ensure(connection, name)
    ((failover,),) = await connection.query(
        "select to_jsonb(s) ->> 'failover' from pg_replication_slots as s where slot_name = $1", name
    )
    assert failover == ("true" if connection.version >= 170000 else None)


async def test_a_slot_that_is_gone_is_lost_once_something_was_captured(connection: SourceConnection) -> None:
    with pytest.raises(SlotLost, match=r"no longer exists\. The changes since 0/64 can't be captured"):
        await _ensure(connection, fresh(), expected=100)


async def test_a_slot_that_was_advanced_elsewhere_is_lost(connection: SourceConnection) -> None:
    name = fresh()
    position = await _ensure(connection, name)
    await connection.query("insert into orders values (1)")
    await connection.query("select pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", name)
    with pytest.raises(SlotLost, match=f"captured only up to {positions.as_text(position)}"):
        await _ensure(connection, name, expected=position)


async def test_a_slot_that_is_given_and_missing_comes_with_its_statement(connection: SourceConnection) -> None:
    name = fresh()
    with pytest.raises(SourceStopped, match="no replication slot") as stopped:
        await _ensure(connection, name, owned=False)
    assert stopped.value.mend is not None
    await connection.query(stopped.value.mend)
    assert await _ensure(connection, name, owned=False) > 0


@pytest.mark.parametrize(
    ("made_by", "wrong"),
    [
        ("pg_create_physical_replication_slot($1)", "is physical"),
        ("pg_create_logical_replication_slot($1, 'pgoutput', false, true)", "has two_phase on"),
        ("pg_create_logical_replication_slot($1, 'pgoutput', true)", "is temporary"),
    ],
)
async def test_a_slot_of_another_kind_is_refused(connection: SourceConnection, made_by: str, wrong: str) -> None:
    name = fresh()
    await connection.query(f"select {made_by}", name)
    try:
        with pytest.raises(SourceStopped, match=wrong):
            await _ensure(connection, name, owned=False)
    finally:
        await connection.query("select pg_drop_replication_slot($1)", name)


async def test_a_slot_of_another_plugin_is_refused(connection: SourceConnection) -> None:
    name = fresh()
    await _ensure(connection, name)
    found = await slots.find_slot(connection, name)
    assert found is not None
    assert found.unusable(name) is None
    other = msgspec.structs.replace(found, plugin="wal2json")
    assert other.unusable(name) == f"The replication slot {name} uses the plugin wal2json. It must use pgoutput."


async def test_a_slot_of_another_database_is_refused(connection: SourceConnection, server_dsn: str) -> None:
    name = fresh()
    async with await SourceConnection.connect(server_dsn, application_name="other") as other:
        await _ensure(other, name)
        try:
            with pytest.raises(SourceStopped, match="belongs to another database"):
                await _ensure(connection, name)
        finally:
            await slots.drop_slot(other, name, "other")


async def test_a_connection_of_ours_that_was_left_over_is_ended(connection: SourceConnection, empty_dsn: str) -> None:
    name = fresh()
    async with replicating(empty_dsn, connection, slot=name, keep=False) as replication:
        await _ensure(connection, name)
        found = await slots.find_slot(connection, name)
        assert found is not None
        assert found.pid is None
        with pytest.raises(SourceUnavailable):
            await read_on(replication)


async def test_a_slot_in_use_by_another_connection_is_left_alone(connection: SourceConnection, empty_dsn: str) -> None:
    name = fresh()
    async with replicating(empty_dsn, connection, slot=name):
        for work in (
            slots.ensure_slot(connection, name, owned=True, expected=None, application_name="another"),
            slots.drop_slot(connection, name, "another"),
        ):
            with pytest.raises(SourceStopped, match=rf"in use by another client \(pid \d+, '{APPLICATION}' of"):
                await work
        found = await slots.find_slot(connection, name)
        assert found is not None
        assert found.pid is not None


async def test_the_transaction_that_keeps_a_slot_from_being_made_is_reported(
    connection: SourceConnection, empty_dsn: str
) -> None:
    name = fresh()
    async with await SourceConnection.connect(empty_dsn, application_name="other") as other:
        await other.query("begin; insert into orders values (1)")
        # The error names the oldest transaction, which may belong to another test on the same server.
        with pytest.raises(
            SourceUnavailable, match=r"waits for transactions that were open before. The oldest .* pid \d+ of .*, open"
        ):
            await slots.ensure_slot(
                connection, name, owned=True, expected=None, application_name=APPLICATION, timeout=0.1
            )
    assert await slots.find_slot(connection, name) is None
    assert await connection.query("show statement_timeout") == [("0",)]
    assert await _ensure(connection, name) > 0


async def test_a_role_without_replication_rights_is_reported_with_the_statement_that_grants_them(
    connection: SourceConnection, empty_dsn: str
) -> None:
    role = fresh("Role")
    await connection.query(f"""create role "{role}" login password 'secret'""")
    try:
        async with await SourceConnection.connect(
            as_role(empty_dsn, role, "secret"), application_name=APPLICATION
        ) as own:
            with pytest.raises(SourceStopped, match="needs the attribute replication") as stopped:
                await _ensure(own, fresh())
            assert stopped.value.mend == f'alter role "{role}" replication;'
            await connection.query(stopped.value.mend)
            assert await _ensure(own, fresh()) > 0
    finally:
        await connection.query(f'drop role "{role}"')


@pytest.mark.parametrize("text", ["0/10", "0/00000010", "00000000/00000010"])
async def test_a_position_is_the_same_with_zeros_before_it(connection: SourceConnection, text: str) -> None:
    """PostgreSQL 19 pads it."""
    assert positions.parse(text) == 16
    ((shown,),) = await connection.query("select $1::pg_lsn::text", text)
    assert shown is not None
    assert positions.parse(shown) == 16


@pytest.mark.parametrize(
    ("sqlstate", "expected", "mend"),
    [
        ("55000", 'logical decoding requires "wal_level" >= "logical"', "alter system set wal_level = 'logical';"),
        ("55000", '"max_replication_slots" must be > 0', None),
        ("53400", "all replication slots are in use", None),
        ("XX000", "an unexpected error", None),
    ],
)
async def test_errors_of_the_server_configuration_stop_the_source(
    sqlstate: str, expected: str, mend: str | None
) -> None:
    stopped = server_errors.setup_error(SourceRefused(sqlstate, expected))
    assert expected in stopped.reason
    assert stopped.mend == mend


async def test_a_prepared_transaction_that_keeps_a_slot_from_being_made_is_reported(
    connection: SourceConnection,
) -> None:
    gid = fresh("prepared")
    await connection.query(f"begin; insert into orders values (1); prepare transaction '{gid}'")
    try:
        with pytest.raises(SourceUnavailable, match=rf"the prepared transaction '{gid}'|The oldest is"):
            await slots.ensure_slot(
                connection, fresh(), owned=True, expected=None, application_name=APPLICATION, timeout=0.1
            )
    finally:
        await connection.query(f"rollback prepared '{gid}'")


async def test_a_slot_is_dropped_also_while_a_connection_of_ours_uses_it(
    connection: SourceConnection, empty_dsn: str
) -> None:
    name = fresh()
    async with replicating(empty_dsn, connection, slot=name, keep=False):
        await slots.drop_slot(connection, name, APPLICATION)
    assert await slots.find_slot(connection, name) is None
    await slots.drop_slot(connection, name, APPLICATION)


async def test_a_slot_is_dropped_also_when_a_connection_of_ours_takes_it_in_the_last_moment(
    connection: SourceConnection, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh()
    await _ensure(connection, name)
    async with AsyncExitStack() as late:
        query, begun = connection.query, 0

        async def after_it_was_taken(sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
            nonlocal begun
            if "pg_drop_replication_slot" in sql:
                begun += 1
                if begun == 1:
                    await late.enter_async_context(replicating(empty_dsn, other, slot=name, keep=False))
            return await query(sql, *params)

        other = await late.enter_async_context(await SourceConnection.connect(empty_dsn, application_name="other"))
        monkeypatch.setattr(connection, "query", after_it_was_taken)
        await slots.drop_slot(connection, name, APPLICATION)
        assert begun == 2
        assert await slots.find_slot(connection, name) is None


async def test_how_a_slot_is(connection: SourceConnection) -> None:
    name = fresh()
    position = await _ensure(connection, name)
    before = await slots.slot_facts(connection, name, position)
    await connection.query("insert into orders select g, repeat('x', 1000) from generate_series(1, 1000) as g")
    after = await slots.slot_facts(connection, name, position)
    assert (after.wal_status, after.safe_wal_size) == ("reserved", None)
    assert before.held_back is not None
    assert before.behind is not None
    assert after.held_back is not None
    assert after.behind is not None
    assert after.held_back >= before.held_back + 1_000_000
    assert after.behind >= before.behind + 1_000_000
    assert after.held_back >= after.behind


async def test_a_missing_slot_is_reported_as_lost(connection: SourceConnection) -> None:
    facts = await slots.slot_facts(connection, fresh(), 0)
    assert (facts.wal_status, facts.held_back) == ("lost", None)


async def _ensure(connection: SourceConnection, name: str, *, owned: bool = True, expected: int | None = None) -> int:
    return await slots.ensure_slot(connection, name, owned=owned, expected=expected, application_name=APPLICATION)


async def _published(connection: SourceConnection, name: str) -> list[str | None]:
    return [
        table
        for (table,) in await connection.query(
            "select tablename from pg_publication_tables where pubname = $1 order by 1", name
        )
    ]


async def _oid(connection: SourceConnection, name: str) -> str | None:
    ((oid,),) = await connection.query("select oid from pg_publication where pubname = $1", name)
    return oid
