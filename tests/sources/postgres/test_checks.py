"""Findings of `check`, and the statements in them, which fix the problem."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio

from headrace.embedded.binaries import find_installation
from headrace.model.capture import Finding
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import checks, slots
from headrace.sources.postgres.database.checks import check
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.connections import (
    APPLICATION,
    as_role,
    connected,
    ensure_publication,
    fresh,
    refusing,
    replicating,
    server_that,
)
from tests.support.clusters import cluster

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    """A connection to a database with a table, as a superuser."""
    async with connected(empty_dsn) as connection:
        await connection.query(
            "create table orders (id int primary key, note text); alter table orders replica identity full"
        )
        yield connection


def spec(*tables: str, **settings: Any) -> PostgresSpec:
    return PostgresSpec(name="shop", stream="shop", tables=tables or ("public.orders",), **settings)


@asynccontextmanager
async def role(connection: SourceConnection, dsn: str) -> AsyncIterator[str]:
    """A role that may only log in. Returns the database's URL with that role."""
    name = fresh("role")
    await connection.query(f"create role {name} login password 'secret'")
    try:
        yield as_role(dsn, name, "secret")
    finally:
        await connection.query(f"drop owned by {name}; drop role {name}")


def of(findings: list[Finding], level: str) -> list[str]:
    """Return the texts of the findings of this level."""
    return [finding.message for finding in findings if finding.level == level]


async def mend(connection: SourceConnection, findings: list[Finding]) -> None:
    """Execute the fixes of the findings, one by one."""
    for finding in findings:
        if finding.hint is not None:
            await connection.query(finding.hint)


async def test_all_is_well(connection: SourceConnection, empty_dsn: str) -> None:
    findings = await check(empty_dsn, spec(), fresh())
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.what for finding in findings] == [
        "connection", "wal_level", "max_replication_slots", "max_wal_senders", "replication", "public.orders", "publication",
        "replication slot", "max_slot_wal_keep_size",
    ]  # fmt: skip
    assert not any(finding.hint for finding in findings)


async def test_its_statements_make_capture_work_for_a_role_without_rights(
    connection: SourceConnection, empty_dsn: str
) -> None:
    await connection.query("""
        create schema shop;
        create table shop.lines (note text);
        create unlogged table shop."Unlogged" (id int primary key);
        create table bare (note text); alter table bare replica identity nothing;
        create table days (id int, day int, primary key (id, day)) partition by range (day); alter table days replica identity full;
        create table days_1 partition of days for values from (0) to (10);
        create table days_2 partition of days for values from (10) to (20); alter table days_2 replica identity nothing;
    """)
    name, wanted = fresh(), spec("public.orders", "shop.lines", 'shop."Unlogged"', "public.bare", "public.days")
    async with role(connection, empty_dsn) as own:
        findings = await check(own, wanted, name)
        assert len(of(findings, "error")) >= 12
        await mend(connection, findings)
        assert of(await check(own, wanted, name), "error") == []
        async with await SourceConnection.connect(own, application_name=APPLICATION) as mine:
            await ensure_publication(mine, wanted, name)
            async with replicating(own, mine, slot=name, publication=name) as replication:
                await connection.query(
                    "insert into shop.lines values ('one'); update days set id = 1; delete from bare"
                )
                with anyio.fail_after(30):
                    while not (await replication.read()).payloads:
                        pass  # the server first sends its own position
                assert of(await check(own, wanted, name), "error") == []


async def test_its_statements_make_mode_rows_work(connection: SourceConnection, empty_dsn: str) -> None:
    await connection.query("create table lines (note text, at timestamptz)")
    name, wanted = fresh(), spec("public.lines", mode="rows", sort="at")
    findings = await check(empty_dsn, wanted, name)
    assert of(findings, "error") == [
        "The table has neither a primary key nor a unique index over columns that are not null, so its rows can't be identified.",
        "The sort column at may be null. It must be not null.",
    ]
    await mend(connection, findings)
    again = await check(empty_dsn, wanted, name)
    assert of(again, "error") == []
    await mend(connection, again)
    assert of(await check(empty_dsn, wanted, name), "warning") == []


async def test_a_table_without_a_key_is_captured_and_the_consequences_are_reported(
    connection: SourceConnection, empty_dsn: str
) -> None:
    await connection.query("create table history (at timestamptz)")
    wanted = spec("public.history", actions=("insert",), backfill=False)
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == []
    assert [text for text in of(findings, "warning") if "all its messages have one key" in text]
    [refused] = of(await check(empty_dsn, spec("public.history"), fresh()), "error")
    assert "the server refuses all its updates and deletes" in refused


async def test_senders_that_are_all_in_use_are_no_refusal(
    connection: SourceConnection, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = SourceConnection.connect

    async def full(dsn: str, *, application_name: str, replication: bool = False) -> SourceConnection:
        if replication:
            raise SourceUnavailable("All of them are in use.")
        return await connect(dsn, application_name=application_name)

    monkeypatch.setattr(SourceConnection, "connect", full)
    findings = await check(empty_dsn, spec(), fresh())
    assert of(findings, "error") == []
    assert any("failed: All of them are in use." in text for text in of(findings, "warning"))


async def test_a_server_that_can_t_be_reached_or_refuses_is_one_finding() -> None:
    async with server_that(refusing("28P01", 'password authentication failed for user "ada"')) as port:
        [finding] = await check(f"postgresql://ada:secret@127.0.0.1:{port}/shop", spec(), fresh())
    assert (finding.what, finding.level) == ("connection", "error")
    assert "Set the right password" in finding.message
    assert "secret" not in finding.message
    [finding] = await check(f"postgresql://ada:secret@127.0.0.1:{port}/shop", spec(), fresh())
    assert "can't be reached" in finding.message


@pytest.mark.parametrize(("version", "level", "expected"), [
    (140000, "logical", "ok"), (180004, "replica", "error"), (190000, "replica", "ok"), (190000, "minimal", "error"),
    (190000, "logical", "ok"), (200000, "replica", "ok"),
])  # fmt: skip
async def test_the_wal_has_to_be_logical_which_postgresql_19_does_on_demand(
    connection: SourceConnection,
    empty_dsn: str,
    version: int,
    level: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "version", version)
    found = await checks._Check(connection, empty_dsn, spec(), fresh(), 60)._wal_level(level)
    assert found.level == expected
    assert (found.hint is None) is (expected == "ok")


@pytest.mark.process
async def test_a_server_without_logical_wal_is_captured_from_postgresql_19_on(tmp_path: Path) -> None:
    if find_installation().major < checks.LOGICAL_ON_DEMAND:
        pytest.skip("wal_level = replica suffices from PostgreSQL 19 on")
    with cluster(tmp_path / "data", wal_level="replica") as postgres:
        url, name = postgres.url(), fresh()
        async with await SourceConnection.connect(url, application_name=APPLICATION) as connection:
            await connection.query("create table orders (id int primary key)")
            await mend(connection, await check(url, spec(), name))
            await ensure_publication(connection, spec(), name)
            async with replicating(url, connection, slot=name, publication=name) as replication:
                await connection.query("insert into orders values (1)")
                with anyio.fail_after(30):
                    while not (await replication.read()).payloads:
                        pass  # the server first sends its own position
                assert await connection.query("show effective_wal_level") == [("logical",)]
                assert of(await check(url, spec(), name), "error") == []


@pytest.mark.parametrize(("used", "needed", "level", "text"), [
    (3, True, "ok", "3 of 10 slots are in use, this source takes one, and 6 are left."),
    (3, False, "ok", "3 of 10 slots are in use, and 7 are left."),
    (9, True, "warning", "9 of 10 slots are in use, this source takes one, and 0 are left. A source"),
    (10, False, "warning", "10 of 10 slots are in use, and 0 are left. A source"),
    (10, True, "error", "All 10 slots are in use, and this source needs one."),
])  # fmt: skip
async def test_how_many_slots_are_left_is_said_before_there_are_none(
    connection: SourceConnection, empty_dsn: str, used: int, needed: bool, level: str, text: str
) -> None:
    found = checks._Check(connection, empty_dsn, spec(), fresh(), 60)._capacity(
        "slots", "max_slots", used, 10, needed=needed
    )
    assert found.level == level
    assert found.message.startswith(text)
    assert found.hint == (None if level == "ok" else "alter system set max_slots = 20;")


async def test_tables_that_are_missing_and_what_was_meant(connection: SourceConnection, empty_dsn: str) -> None:
    findings = await check(empty_dsn, spec("public.ordres", "public.orders"), fresh())
    assert of(findings, "error") == ["The captured database has no table public.ordres. Did you mean public.orders?"]


async def test_columns_that_are_missing_are_named_with_their_setting(
    connection: SourceConnection, empty_dsn: str
) -> None:
    wanted = spec(columns={"public.orders": ("id", "nota")}, group=("region",))
    texts = of(await check(empty_dsn, wanted, fresh()), "error")
    assert "The setting columns names 'nota', but the table has no such column. Did you mean 'note'?" in texts
    assert "The setting group names 'region', but the table has no such column." in texts


async def test_a_condition_on_a_missing_column_is_reported(connection: SourceConnection, empty_dsn: str) -> None:
    findings = await check(empty_dsn, spec(where="data.record.nota = 'a' and data.action = 'insert'"), fresh())
    assert "The setting where uses 'nota', but the table has no such column. Did you mean 'note'?" in of(
        findings, "error"
    )
    several = spec("public.orders", "public.items", where="data.record.nota = 'a'")
    findings = await check(empty_dsn, several, fresh())
    assert any("The setting where uses 'nota'" in text for text in of(findings, "warning"))
    assert not any("nota" in text for text in of(findings, "error"))


async def test_old_values_take_a_replica_identity(connection: SourceConnection, empty_dsn: str) -> None:
    await connection.query("alter table orders replica identity default")
    findings = await check(empty_dsn, spec(), fresh())
    [finding] = [finding for finding in findings if finding.level == "warning"]
    assert "the WAL contains only id" in finding.message
    assert finding.hint == "alter table public.orders replica identity full;"
    assert of(await check(empty_dsn, spec(actions=("insert",)), fresh()), "warning") == []
    assert of(await check(empty_dsn, spec(mode="rows"), fresh()), "warning") == []


async def test_keys_of_other_columns_take_them_in_deleted_rows(connection: SourceConnection, empty_dsn: str) -> None:
    await connection.query("alter table orders replica identity default")
    for settings in ({"group": ("note",)}, {"key": "orders.{record.note}"}):
        texts = of(await check(empty_dsn, spec(**settings), fresh()), "error")
        assert texts == ["Of deleted rows, the WAL contains only id. The keys of their messages also need note."]
    assert of(await check(empty_dsn, spec(group=("note",), actions=("insert", "update")), fresh()), "error") == []


async def test_generated_columns_that_are_not_captured_are_named(connection: SourceConnection, empty_dsn: str) -> None:
    kind = "virtual" if connection.version >= 180000 else "stored"
    await connection.query(
        f"alter table orders replica identity default, add twice int generated always as (id * 2) {kind}"
    )
    findings = await check(empty_dsn, spec(), fresh())
    assert of(findings, "warning")[-1].endswith("are not captured: twice.")
    texts = of(await check(empty_dsn, spec(columns={"public.orders": ("id", "twice")}), fresh()), "error")
    assert texts == ["The setting columns names the generated column 'twice', which is not replicated. Leave it out."]
    texts = of(await check(empty_dsn, spec(where="data.record.twice > 2"), fresh()), "error")
    assert texts == ["The setting where uses the generated column 'twice', which is not replicated. Leave it out."]


async def test_a_sort_column_that_does_not_grow_is_explained(connection: SourceConnection, empty_dsn: str) -> None:
    await connection.query("alter table orders add tag uuid not null default gen_random_uuid()")
    texts = of(await check(empty_dsn, spec(mode="rows", sort="tag"), fresh()), "warning")
    assert any("is a uuid, which does not grow" in text for text in texts)
    texts = of(await check(empty_dsn, spec(mode="rows", sort="note"), fresh()), "warning")
    assert any("is not a number, date or timestamp" in text for text in texts)
    assert of(await check(empty_dsn, spec(mode="rows", sort="id"), fresh()), "warning") == []


async def test_row_security_that_hides_rows_is_reported(connection: SourceConnection, empty_dsn: str) -> None:
    await connection.query("alter table orders enable row level security")
    name = fresh()
    async with role(connection, empty_dsn) as own:
        await mend(connection, await check(own, spec(), name))
        assert of(await check(own, spec(), name), "warning") == []
    async with role(connection, empty_dsn) as own:
        assert any(text.startswith("Row security hides rows") for text in of(await check(own, spec(), name), "warning"))


async def test_a_slot_and_a_publication_that_are_given_and_missing_come_with_their_statements(
    connection: SourceConnection, empty_dsn: str
) -> None:
    wanted = spec(slot=fresh("given"), publication="given")
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == [
        "The publication given does not exist.",
        f"The replication slot {wanted.slot} does not exist.",
    ]
    await mend(connection, findings)
    assert {finding.level for finding in await check(empty_dsn, wanted, fresh())} == {"ok"}


async def test_a_given_publication_that_lacks_something_comes_with_its_statements(
    connection: SourceConnection, empty_dsn: str
) -> None:
    await connection.query(
        "create table lines (id int primary key); create publication given for table lines with (publish = 'insert')"
    )
    wanted = spec("public.orders", "public.lines", publication="given", mode="rows")
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == [
        "The publication given lacks public.orders.", "The publication given does not publish these actions: update, delete, truncate.",
    ]  # fmt: skip
    await mend(connection, findings)
    assert of(await check(empty_dsn, wanted, fresh()), "error") == []


@pytest.mark.parametrize("sequences", ["", ", all sequences"])
async def test_an_exception_of_a_given_publication_of_all_tables_comes_with_its_statement(
    connection: SourceConnection, empty_dsn: str, sequences: str
) -> None:
    if connection.version < 190000:
        pytest.skip("publications have exceptions from PostgreSQL 19 on")
    await connection.query(
        "create table lines (id int primary key); create table other (id int primary key);"
        f" create publication given for all tables except (table lines, other){sequences} with (publish_via_partition_root)"
    )
    wanted = spec("public.orders", "public.lines", publication="given")
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == ["The publication given lacks public.lines."]
    assert [one.hint for one in findings if one.level == "error"] == [
        f"alter publication given set all tables except (table only public.other){sequences};"
    ]
    await mend(connection, findings)
    assert of(await check(empty_dsn, wanted, fresh()), "error") == []


async def test_tables_can_t_be_added_to_a_given_publication_of_all_sequences(
    connection: SourceConnection, empty_dsn: str
) -> None:
    if connection.version < 190000:
        pytest.skip("publications have sequences from PostgreSQL 19 on")
    await connection.query("create publication given for all sequences")
    findings = await check(empty_dsn, spec("public.orders", publication="given"), fresh())
    [lacking] = [one for one in findings if one.level == "error"]
    assert (lacking.message, lacking.hint) == ("The publication given lacks public.orders.", None)


async def test_a_slot_that_another_connection_uses_is_reported_and_our_own_is_not(
    connection: SourceConnection, empty_dsn: str
) -> None:
    name = fresh()
    async with replicating(empty_dsn, connection, slot=name, publication="any"):
        assert of(await check(empty_dsn, spec(), name), "error") == []
    await slots.ensure_slot(connection, name, owned=True, expected=None, application_name=APPLICATION)
    replication = await start_reading(empty_dsn, name)
    try:
        [text] = of(await check(empty_dsn, spec(slot=name), fresh()), "error")
        assert "is in use by another client" in text
        assert "'debezium'" in text
    finally:
        await replication.close()


async def test_a_slot_of_another_kind_is_reported(connection: SourceConnection, empty_dsn: str) -> None:
    name = fresh()
    await connection.query("select pg_create_physical_replication_slot($1)", name)
    try:
        [text] = of(await check(empty_dsn, spec(slot=name), fresh()), "error")
        assert "is physical" in text
    finally:
        await connection.query("select pg_drop_replication_slot($1)", name)


async def test_transactions_that_the_slot_would_wait_for_are_reported(
    connection: SourceConnection, empty_dsn: str
) -> None:
    async with await SourceConnection.connect(empty_dsn, application_name="other") as other:
        await other.query("begin; insert into orders values (1)")
        [text] = of(await check(empty_dsn, spec(), fresh(), long_transaction=0), "warning")
    assert "waits for open transactions. The oldest is that of pid" in text


async def start_reading(dsn: str, slot: str) -> Any:
    from headrace.sources.postgres.connection.replication_stream import Replication, ReplicationStream

    replication = Replication(slot=slot, publications=["any"], position=1)
    return await ReplicationStream.start(dsn, replication, application_name="debezium")
