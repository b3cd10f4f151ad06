"""Slots and publications: created, adopted, refused and lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace.sources.postgres.connection import server_errors
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database import slots
from headrace.sources.postgres.database.catalog import load_tables
from headrace.sources.postgres.database.publications import publication_of, uncovered
from headrace.sources.postgres.errors import SlotLost, SourceRefused, SourceStopped, SourceUnavailable
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.linked import APPLICATION, as_role, feeding, fresh, linked, read_on

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def link(empty_dsn: str) -> AsyncIterator[Link]:
    """A link to a database with tables."""
    async with linked(empty_dsn) as link:
        await link.query("""
            create table orders (id int primary key, note text);
            create table lines (id int primary key);
            create table keyless (note text);
            create publication all_of_it for table orders
        """)
        yield link


def spec(*tables: str, **settings: Any) -> PostgresSpec:
    return PostgresSpec(name="shop", stream="shop", tables=tables or ("public.orders",), **settings)


# --- the identity of the server


async def test_a_server_says_which_it_is_and_where(link: Link) -> None:
    server = await slots.server_of(link)
    ((system_id,),) = await link.query("select system_identifier from pg_control_system()")
    assert (server.system_id, server.timeline, server.in_recovery) == (system_id, 1, False)
    assert server.version == link.version
    await link.query("create table more (id int)")
    assert (await slots.server_of(link)).position > server.position


HISTORY = """\
1\t0/3000148\tno recovery target specified

2\tA/16B374D8\tbefore 2026-01-01 00:00:00+00
"""


async def test_a_history_says_where_the_timelines_parted() -> None:
    assert slots.history_switch(HISTORY, 1, 3) == 0x3000148
    assert slots.history_switch(HISTORY, 2, 3) == (0xA << 32) + 0x16B374D8


async def test_a_timeline_that_is_not_in_the_history_means_to_start_anew() -> None:
    with pytest.raises(SourceStopped, match=r"on timeline 5, which does not descend from 4.*fresh backfill"):
        slots.history_switch(HISTORY, 4, 5)


async def test_a_server_without_that_timeline_says_so(link: Link, empty_dsn: str) -> None:
    with pytest.raises(SourceStopped, match="does not say how it came there from 1"):
        await slots.switch_point(empty_dsn, 1, 77)


# --- names


async def test_a_slot_is_named_after_its_source() -> None:
    assert slots.slot_name("my-orders", "1B4E28BA-2fa1-11d2-883f-0016d3cca427") == "headrace_my_orders_1b4e28ba"


async def test_the_longest_name_of_a_source_makes_a_name_that_postgres_takes_whole() -> None:
    name = slots.slot_name("a" * 48, "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    assert len(name) == 63
    assert name.endswith("a_1b4e28ba")


# --- publications


async def test_a_publication_is_made_once_and_kept_as_the_settings_are(link: Link) -> None:
    name = fresh()
    await slots.ensure_publication(link, spec(), name)
    made = await _oid(link, name)
    assert await _published(link, name) == ["orders"]
    await slots.ensure_publication(link, spec(), name)
    await slots.ensure_publication(link, spec("public.orders", "public.lines", actions=("insert", "delete")), name)
    assert await _published(link, name) == ["lines", "orders"]
    found = await publication_of(link, name)
    assert found is not None
    assert (found.actions, found.via_root, found.mine) == ({"insert", "delete"}, True, True)
    assert await _oid(link, name) == made
    await slots.drop_publication(link, name)
    await slots.drop_publication(link, name)
    assert await publication_of(link, name) is None


async def test_a_correct_publication_is_not_written_again(link: Link) -> None:
    name = fresh()
    await slots.ensure_publication(link, spec(), name)
    query = "select xmin::text from pg_publication where pubname = $1 union all select r.xmin::text from pg_publication_rel as r"
    before = await link.query(query, name)
    await slots.ensure_publication(link, spec(), name)
    assert await link.query(query, name) == before


async def test_a_publication_that_is_given_is_looked_at_and_not_changed(link: Link) -> None:
    await slots.ensure_publication(link, spec(publication="all_of_it"), "all_of_it")
    with pytest.raises(SourceStopped, match=r"all_of_it lacks public\.lines") as stopped:
        await slots.ensure_publication(
            link, spec("public.orders", "public.lines", publication="all_of_it"), "all_of_it"
        )
    assert stopped.value.mend == "alter publication all_of_it add table public.lines;"
    await link.query(stopped.value.mend)
    await slots.ensure_publication(link, spec("public.orders", "public.lines", publication="all_of_it"), "all_of_it")


async def test_a_publication_that_is_given_has_to_publish_what_is_asked_for(link: Link) -> None:
    await link.query("""create publication "Only news" for all tables with (publish = 'insert')""")
    await slots.ensure_publication(link, spec(publication="Only news", actions=("insert",)), "Only news")
    with pytest.raises(SourceStopped, match="does not publish every update and delete and truncate") as stopped:
        await slots.ensure_publication(link, spec(publication="Only news"), "Only news")
    assert stopped.value.mend is not None
    await link.query(stopped.value.mend)
    await slots.ensure_publication(link, spec(publication="Only news"), "Only news")


async def test_a_publication_that_is_given_and_missing_comes_with_its_statement(link: Link) -> None:
    with pytest.raises(SourceStopped, match="no publication nowhere") as stopped:
        await slots.ensure_publication(link, spec(publication="nowhere"), "nowhere")
    assert stopped.value.mend is not None
    await link.query(stopped.value.mend)
    await slots.ensure_publication(link, spec(publication="nowhere"), "nowhere")


async def test_a_table_of_which_updates_would_be_refused_is_not_published(link: Link) -> None:
    name = fresh()
    with pytest.raises(SourceStopped, match=r"public\.keyless has no primary key") as stopped:
        await slots.ensure_publication(link, spec("public.keyless", group=("note",)), name)
    await slots.ensure_publication(link, spec("public.keyless", group=("note",), actions=("insert",)), name)
    await link.query("insert into keyless values ('one'); update keyless set note = 'two'")  # still possible
    assert stopped.value.mend == "alter table public.keyless replica identity full;"
    await link.query(stopped.value.mend)
    await slots.ensure_publication(link, spec("public.keyless", group=("note",)), name)


async def test_partitions_are_covered_by_their_root_and_the_root_by_all_of_them(link: Link) -> None:
    await link.query("""
        create table events (id int primary key) partition by range (id);
        create table events_1 partition of events for values from (0) to (10);
        create table events_2 partition of events for values from (10) to (20);
        create publication one for table events_1; create publication two for table events_1, events_2;
        create publication root for table events
    """)
    tables = (await load_tables(link, ["public.events"])).values()
    assert [table.name for table in await uncovered(link, "one", tables)] == ["public.events"]
    assert await uncovered(link, "two", tables) == []
    assert await uncovered(link, "root", tables) == []


async def test_a_table_that_inherits_comes_along_and_changes_nothing(link: Link) -> None:
    name = fresh()
    await link.query("create table late (at timestamp) inherits (orders)")
    await slots.ensure_publication(link, spec(), name)
    before = await link.query("select xmin::text from pg_publication_rel order by oid")
    await slots.ensure_publication(link, spec(), name)
    assert await link.query("select xmin::text from pg_publication_rel order by oid") == before


async def test_a_table_that_is_locked_is_waited_for_only_so_long(
    link: Link, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.postgres.database.publications.LOCK_PATIENCE", 0.05)
    async with await Link.connect(empty_dsn, application_name="other") as other:
        await other.query("begin; lock table orders in access exclusive mode")
        with pytest.raises(SourceUnavailable, match="lock timeout"):
            await slots.ensure_publication(link, spec(), fresh())
    assert await link.query("select 1") == [("1",)]


# --- slots


async def test_a_slot_is_made_once_and_then_goes_on_from_where_it_is(link: Link) -> None:
    name = fresh()
    position = await _ensure(link, name)
    assert await _ensure(link, name, expected=position) == position
    assert await _ensure(link, name, expected=position + 100) == position
    found = await slots.slot_of(link, name)
    assert found is not None
    assert (found.plugin, found.here, found.lost, found.pid) == ("pgoutput", True, False, None)


async def test_a_slot_of_ours_is_made_anew_when_nothing_is_captured_as_yet(link: Link) -> None:
    name = fresh()
    position = await _ensure(link, name)
    await link.query("create table written_meanwhile (id int)")
    assert await _ensure(link, name) > position


async def test_a_standby_may_keep_a_copy_of_the_slot_from_version_17_on(link: Link) -> None:
    name = fresh()
    await _ensure(link, name)
    ((failover,),) = await link.query(
        "select to_jsonb(s) ->> 'failover' from pg_replication_slots as s where slot_name = $1", name
    )
    assert failover == ("true" if link.version >= 170000 else None)


async def test_a_slot_that_is_gone_is_lost_once_something_was_captured(link: Link) -> None:
    with pytest.raises(SlotLost, match="is gone: what was committed since 0/64 can't be captured"):
        await _ensure(link, fresh(), expected=100)


async def test_a_slot_that_was_advanced_elsewhere_is_lost(link: Link) -> None:
    name = fresh()
    position = await _ensure(link, name)
    await link.query("insert into orders values (1)")
    await link.query("select pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", name)
    with pytest.raises(SlotLost, match=f"only up to {positions.text(position)} everything is captured"):
        await _ensure(link, name, expected=position)


async def test_a_slot_that_is_given_and_missing_comes_with_its_statement(link: Link) -> None:
    name = fresh()
    with pytest.raises(SourceStopped, match="no replication slot") as stopped:
        await _ensure(link, name, ours=False)
    assert stopped.value.mend is not None
    await link.query(stopped.value.mend)
    assert await _ensure(link, name, ours=False) > 0


@pytest.mark.parametrize(
    ("made_by", "wrong"),
    [
        ("pg_create_physical_replication_slot($1)", "is for a standby"),
        ("pg_create_logical_replication_slot($1, 'pgoutput', false, true)", "has two_phase on"),
        ("pg_create_logical_replication_slot($1, 'pgoutput', true)", "is temporary"),
    ],
)
async def test_a_slot_of_another_kind_is_refused(link: Link, made_by: str, wrong: str) -> None:
    name = fresh()
    await link.query(f"select {made_by}", name)
    try:
        with pytest.raises(SourceStopped, match=wrong):
            await _ensure(link, name, ours=False)
    finally:
        await link.query("select pg_drop_replication_slot($1)", name)


async def test_a_slot_of_another_plugin_is_refused(link: Link) -> None:
    name = fresh()
    await _ensure(link, name)
    found = await slots.slot_of(link, name)
    assert found is not None
    assert found.unfit(name) is None
    other = msgspec.structs.replace(found, plugin="wal2json")
    assert other.unfit(name) == f"The replication slot {name} is of the plugin wal2json, and has to be of pgoutput."


async def test_a_slot_of_another_database_is_refused(link: Link, server_dsn: str) -> None:
    name = fresh()
    async with await Link.connect(server_dsn, application_name="other") as other:
        await _ensure(other, name)
        try:
            with pytest.raises(SourceStopped, match=r"is of the database .*, not of this one"):
                await _ensure(link, name)
        finally:
            await slots.drop_slot(other, name, "other")


async def test_a_connection_of_ours_that_was_left_over_is_ended(link: Link, empty_dsn: str) -> None:
    name = fresh()
    async with feeding(empty_dsn, link, slot=name, keep=False) as feed:
        await _ensure(link, name)
        found = await slots.slot_of(link, name)
        assert found is not None
        assert found.pid is None
        with pytest.raises(SourceUnavailable):
            await read_on(feed)


async def test_a_slot_in_use_by_another_connection_is_left_alone(link: Link, empty_dsn: str) -> None:
    name = fresh()
    async with feeding(empty_dsn, link, slot=name):
        for work in (
            slots.ensure_slot(link, name, ours=True, expected=None, application_name="not he"),
            slots.drop_slot(link, name, "not he"),
        ):
            with pytest.raises(SourceStopped, match=rf"in use by someone else \(pid \d+, '{APPLICATION}' of"):
                await work
        found = await slots.slot_of(link, name)
        assert found is not None
        assert found.pid is not None


async def test_the_transaction_that_keeps_a_slot_from_being_made_is_reported(link: Link, empty_dsn: str) -> None:
    name = fresh()
    async with await Link.connect(empty_dsn, application_name="other") as other:
        await other.query("begin; insert into orders values (1)")
        # The error names the oldest transaction, which may belong to another test on the same server.
        with pytest.raises(
            SourceUnavailable, match=r"waits for transactions that were open before, the oldest .* pid \d+ of .*, open"
        ):
            await slots.ensure_slot(link, name, ours=True, expected=None, application_name=APPLICATION, patience=0.1)
    assert await slots.slot_of(link, name) is None
    assert await link.query("show statement_timeout") == [("0",)]
    assert await _ensure(link, name) > 0


async def test_a_role_without_replication_rights_is_reported_with_the_statement_that_grants_them(
    link: Link, empty_dsn: str
) -> None:
    role = fresh("Role")
    await link.query(f"""create role "{role}" login password 'secret'""")
    try:
        async with await Link.connect(as_role(empty_dsn, role, "secret"), application_name=APPLICATION) as own:
            with pytest.raises(SourceStopped, match="needs the right to replicate") as stopped:
                await _ensure(own, fresh())
            assert stopped.value.mend == f'alter role "{role}" replication;'
            await link.query(stopped.value.mend)
            assert await _ensure(own, fresh()) > 0
    finally:
        await link.query(f'drop role "{role}"')


@pytest.mark.parametrize(
    ("sqlstate", "told", "mend"),
    [
        ("55000", 'logical decoding requires "wal_level" >= "logical"', "alter system set wal_level = 'logical';"),
        ("55000", '"max_replication_slots" must be > 0', None),
        ("53400", "all replication slots are in use", None),
        ("XX000", "something that nobody has thought of", None),
    ],
)
async def test_errors_of_the_server_configuration_stop_the_source(sqlstate: str, told: str, mend: str | None) -> None:
    stopped = server_errors.mended(SourceRefused(sqlstate, told))
    assert told in stopped.reason
    assert stopped.mend == mend


async def test_a_prepared_transaction_that_keeps_a_slot_from_being_made_is_reported(link: Link) -> None:
    gid = fresh("prepared")
    await link.query(f"begin; insert into orders values (1); prepare transaction '{gid}'")
    try:
        with pytest.raises(SourceUnavailable, match=rf"the prepared one '{gid}'|the oldest of which"):
            await slots.ensure_slot(link, fresh(), ours=True, expected=None, application_name=APPLICATION, patience=0.1)
    finally:
        await link.query(f"rollback prepared '{gid}'")


async def test_a_slot_is_dropped_also_while_a_connection_of_ours_uses_it(link: Link, empty_dsn: str) -> None:
    name = fresh()
    async with feeding(empty_dsn, link, slot=name, keep=False):
        await slots.drop_slot(link, name, APPLICATION)
    assert await slots.slot_of(link, name) is None
    await slots.drop_slot(link, name, APPLICATION)


async def test_a_slot_is_dropped_also_when_a_connection_of_ours_takes_it_in_the_last_moment(
    link: Link, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh()
    await _ensure(link, name)
    async with AsyncExitStack() as late:
        query, begun = link.query, 0

        async def after_it_was_taken(sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
            nonlocal begun
            if "pg_drop_replication_slot" in sql:
                begun += 1
                if begun == 1:
                    await late.enter_async_context(feeding(empty_dsn, other, slot=name, keep=False))
            return await query(sql, *params)

        other = await late.enter_async_context(await Link.connect(empty_dsn, application_name="other"))
        monkeypatch.setattr(link, "query", after_it_was_taken)
        await slots.drop_slot(link, name, APPLICATION)
        assert begun == 2
        assert await slots.slot_of(link, name) is None


async def test_how_a_slot_is(link: Link) -> None:
    name = fresh()
    position = await _ensure(link, name)
    before = await slots.slot_facts(link, name, position)
    await link.query("insert into orders select g, repeat('x', 1000) from generate_series(1, 1000) as g")
    after = await slots.slot_facts(link, name, position)
    assert (after.wal_status, after.safe_wal_size) == ("reserved", None)
    assert before.held_back is not None
    assert before.behind is not None
    assert after.held_back is not None
    assert after.behind is not None
    assert after.held_back >= before.held_back + 1_000_000
    assert after.behind >= before.behind + 1_000_000
    assert after.held_back >= after.behind


async def test_a_missing_slot_is_reported_as_lost(link: Link) -> None:
    facts = await slots.slot_facts(link, fresh(), 0)
    assert (facts.wal_status, facts.held_back) == ("lost", None)


async def _ensure(link: Link, name: str, *, ours: bool = True, expected: int | None = None) -> int:
    return await slots.ensure_slot(link, name, ours=ours, expected=expected, application_name=APPLICATION)


async def _published(link: Link, name: str) -> list[str | None]:
    return [
        table
        for (table,) in await link.query(
            "select tablename from pg_publication_tables where pubname = $1 order by 1", name
        )
    ]


async def _oid(link: Link, name: str) -> str | None:
    ((oid,),) = await link.query("select oid from pg_publication where pubname = $1", name)
    return oid
