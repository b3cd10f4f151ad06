"""Findings of `check`, and the statements in them, which fix the problem."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import pytest_asyncio

from headrace.model.capture import Finding
from headrace.sources.postgres.connection.link import Link
from headrace.sources.postgres.database import slots
from headrace.sources.postgres.database.checks import check
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.linked import APPLICATION, as_role, feeding, fresh, linked, refusing, server_that

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def link(empty_dsn: str) -> AsyncIterator[Link]:
    """A link to a database with a table, as a superuser."""
    async with linked(empty_dsn) as link:
        await link.query(
            "create table orders (id int primary key, note text); alter table orders replica identity full"
        )
        yield link


def spec(*tables: str, **settings: Any) -> PostgresSpec:
    return PostgresSpec(name="shop", stream="shop", tables=tables or ("public.orders",), **settings)


@asynccontextmanager
async def role(link: Link, dsn: str) -> AsyncIterator[str]:
    """A role that may only log in. Returns the database's URL with that role."""
    name = fresh("role")
    await link.query(f"create role {name} login password 'secret'")
    try:
        yield as_role(dsn, name, "secret")
    finally:
        await link.query(f"drop owned by {name}; drop role {name}")


def of(findings: list[Finding], level: str) -> list[str]:
    """Return the texts of the findings of this level."""
    return [finding.told for finding in findings if finding.level == level]


async def mend(link: Link, findings: list[Finding]) -> None:
    """Execute the fixes of the findings, one by one."""
    for finding in findings:
        if finding.mend is not None:
            await link.query(finding.mend)


async def test_all_is_well(link: Link, empty_dsn: str) -> None:
    findings = await check(empty_dsn, spec(), fresh())
    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.what for finding in findings] == [
        "connection", "wal_level", "max_replication_slots", "max_wal_senders", "replication", "public.orders", "publication",
        "replication slot", "max_slot_wal_keep_size",
    ]  # fmt: skip
    assert not any(finding.mend for finding in findings)


async def test_its_statements_make_capture_work_for_a_role_without_rights(link: Link, empty_dsn: str) -> None:
    await link.query("""
        create schema shop;
        create table shop.lines (note text);
        create unlogged table shop."Unlogged" (id int primary key);
        create table bare (note text); alter table bare replica identity nothing;
        create table days (id int, day int, primary key (id, day)) partition by range (day); alter table days replica identity full;
        create table days_1 partition of days for values from (0) to (10);
        create table days_2 partition of days for values from (10) to (20); alter table days_2 replica identity nothing;
    """)
    name, wanted = fresh(), spec("public.orders", "shop.lines", 'shop."Unlogged"', "public.bare", "public.days")
    async with role(link, empty_dsn) as own:
        findings = await check(own, wanted, name)
        assert len(of(findings, "error")) >= 12
        await mend(link, findings)
        assert of(await check(own, wanted, name), "error") == []
        async with await Link.connect(own, application_name=APPLICATION) as mine:
            await slots.ensure_publication(mine, wanted, name)
            async with feeding(own, mine, slot=name, publication=name) as feed:
                await link.query("insert into shop.lines values ('one'); update days set id = 1; delete from bare")
                with anyio.fail_after(30):
                    while not (await feed.read()).payloads:
                        pass  # the server first sends its own position
                assert of(await check(own, wanted, name), "error") == []


async def test_its_statements_make_mode_rows_work(link: Link, empty_dsn: str) -> None:
    await link.query("create table lines (note text, at timestamptz)")
    name, wanted = fresh(), spec("public.lines", mode="rows", sort="at")
    findings = await check(empty_dsn, wanted, name)
    assert of(findings, "error") == [
        "The table has neither a primary key nor a unique index over columns that are not null, so rows can't be told from each other.",
        "The sort column at may be null, and such rows have no place in its order.",
    ]
    await mend(link, findings)
    again = await check(empty_dsn, wanted, name)
    assert of(again, "error") == []
    await mend(link, again)
    assert of(await check(empty_dsn, wanted, name), "warning") == []


async def test_a_table_without_a_key_is_captured_and_the_consequences_are_reported(link: Link, empty_dsn: str) -> None:
    await link.query("create table history (at timestamptz)")
    wanted = spec("public.history", actions=("insert",), backfill=False)
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == []
    assert [told for told in of(findings, "warning") if "all its messages have one key" in told]
    [refused] = of(await check(empty_dsn, spec("public.history"), fresh()), "error")
    assert "the server refuses all updates and deletes of it" in refused


async def test_senders_that_are_all_in_use_are_no_refusal(
    link: Link, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Link.connect

    async def full(dsn: str, *, application_name: str, replication: bool = False) -> Link:
        if replication:
            raise SourceUnavailable("All of them are in use.")
        return await connect(dsn, application_name=application_name)

    monkeypatch.setattr(Link, "connect", full)
    findings = await check(empty_dsn, spec(), fresh())
    assert of(findings, "error") == []
    assert any("can't be seen for now: All of them are in use." in told for told in of(findings, "warning"))


async def test_a_server_that_can_t_be_reached_or_refuses_is_one_finding() -> None:
    async with server_that(refusing("28P01", 'password authentication failed for user "ada"')) as port:
        [finding] = await check(f"postgresql://ada:secret@127.0.0.1:{port}/shop", spec(), fresh())
    assert (finding.what, finding.level) == ("connection", "error")
    assert "the password is wrong" in finding.told
    assert "secret" not in finding.told
    [finding] = await check(f"postgresql://ada:secret@127.0.0.1:{port}/shop", spec(), fresh())
    assert "can't be reached" in finding.told


async def test_tables_that_are_missing_and_what_was_meant(link: Link, empty_dsn: str) -> None:
    findings = await check(empty_dsn, spec("public.ordres", "public.orders"), fresh())
    assert of(findings, "error") == ["The captured database has no table public.ordres: did you mean public.orders?"]


async def test_columns_that_are_missing_are_named_with_their_setting(link: Link, empty_dsn: str) -> None:
    wanted = spec(columns={"public.orders": ("id", "nota")}, group=("region",))
    told = of(await check(empty_dsn, wanted, fresh()), "error")
    assert "The table has no column 'nota', which columns names: did you mean 'note'?" in told
    assert "The table has no column 'region', which group names." in told


async def test_a_condition_on_a_missing_column_is_reported(link: Link, empty_dsn: str) -> None:
    findings = await check(empty_dsn, spec(where="data.record.nota = 'a' and data.action = 'insert'"), fresh())
    assert "The table has no column 'nota', which where looks at: did you mean 'note'?" in of(findings, "error")
    several = spec("public.orders", "public.items", where="data.record.nota = 'a'")
    findings = await check(empty_dsn, several, fresh())
    assert any("'nota', which where looks at" in told for told in of(findings, "warning"))
    assert not any("nota" in told for told in of(findings, "error"))


async def test_old_values_take_a_replica_identity(link: Link, empty_dsn: str) -> None:
    await link.query("alter table orders replica identity default")
    findings = await check(empty_dsn, spec(), fresh())
    [finding] = [finding for finding in findings if finding.level == "warning"]
    assert "the server tells id only" in finding.told
    assert finding.mend == "alter table public.orders replica identity full;"
    assert of(await check(empty_dsn, spec(actions=("insert",)), fresh()), "warning") == []
    assert of(await check(empty_dsn, spec(mode="rows"), fresh()), "warning") == []


async def test_keys_of_other_columns_take_them_in_deleted_rows(link: Link, empty_dsn: str) -> None:
    await link.query("alter table orders replica identity default")
    for settings in ({"group": ("note",)}, {"key": "orders.{record.note}"}):
        told = of(await check(empty_dsn, spec(**settings), fresh()), "error")
        assert told == ["Of deleted rows the server tells id only, and the key of their messages takes note too."]
    assert of(await check(empty_dsn, spec(group=("note",), actions=("insert", "update")), fresh()), "error") == []


async def test_generated_columns_that_are_not_captured_are_named(link: Link, empty_dsn: str) -> None:
    kind = "virtual" if link.version >= 180000 else "stored"
    await link.query(f"alter table orders add twice int generated always as (id * 2) {kind}")
    findings = await check(empty_dsn, spec(), fresh())
    assert of(findings, "warning")[-1].endswith("are not captured: twice.")
    told = of(await check(empty_dsn, spec(columns={"public.orders": ("id", "twice")}), fresh()), "error")
    assert told == ["The generated column 'twice', which columns names, is not replicated: leave it out."]
    told = of(await check(empty_dsn, spec(where="data.record.twice > 2"), fresh()), "error")
    assert told == ["The generated column 'twice', which where looks at, is not replicated: leave it out."]


async def test_a_sort_column_that_does_not_grow_is_explained(link: Link, empty_dsn: str) -> None:
    await link.query("alter table orders add tag uuid not null default gen_random_uuid()")
    told = of(await check(empty_dsn, spec(mode="rows", sort="tag"), fresh()), "warning")
    assert any("is a uuid, and those do not grow" in text for text in told)
    told = of(await check(empty_dsn, spec(mode="rows", sort="note"), fresh()), "warning")
    assert any("is no number, date or timestamp" in text for text in told)
    assert of(await check(empty_dsn, spec(mode="rows", sort="id"), fresh()), "warning") == []


async def test_row_security_that_hides_rows_is_reported(link: Link, empty_dsn: str) -> None:
    await link.query("alter table orders enable row level security")
    name = fresh()
    async with role(link, empty_dsn) as own:
        await mend(link, await check(own, spec(), name))
        assert of(await check(own, spec(), name), "warning") == []
    async with role(link, empty_dsn) as own:
        assert any(text.startswith("Row security hides rows") for text in of(await check(own, spec(), name), "warning"))


async def test_a_slot_and_a_publication_that_are_given_and_missing_come_with_their_statements(
    link: Link, empty_dsn: str
) -> None:
    wanted = spec(slot=fresh("given"), publication="given")
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == ["There is no publication given.", f"There is no replication slot {wanted.slot}."]
    await mend(link, findings)
    assert {finding.level for finding in await check(empty_dsn, wanted, fresh())} == {"ok"}


async def test_a_given_publication_that_lacks_something_comes_with_its_statements(link: Link, empty_dsn: str) -> None:
    await link.query(
        "create table lines (id int primary key); create publication given for table lines with (publish = 'insert')"
    )
    wanted = spec("public.orders", "public.lines", publication="given", mode="rows")
    findings = await check(empty_dsn, wanted, fresh())
    assert of(findings, "error") == [
        "The publication given lacks public.orders.", "The publication given does not publish every update and delete and truncate.",
    ]  # fmt: skip
    await mend(link, findings)
    assert of(await check(empty_dsn, wanted, fresh()), "error") == []


async def test_a_slot_that_another_connection_uses_is_reported_and_our_own_is_not(link: Link, empty_dsn: str) -> None:
    name = fresh()
    async with feeding(empty_dsn, link, slot=name, publication="any"):
        assert of(await check(empty_dsn, spec(), name), "error") == []
    await slots.ensure_slot(link, name, ours=True, expected=None, application_name=APPLICATION)
    feed = await slots_feed(empty_dsn, name)
    try:
        [told] = of(await check(empty_dsn, spec(slot=name), fresh()), "error")
        assert "is in use by someone else" in told
        assert "'debezium'" in told
    finally:
        await feed.close()


async def test_a_slot_of_another_kind_is_reported(link: Link, empty_dsn: str) -> None:
    name = fresh()
    await link.query("select pg_create_physical_replication_slot($1)", name)
    try:
        [told] = of(await check(empty_dsn, spec(slot=name), fresh()), "error")
        assert "is for a standby" in told
    finally:
        await link.query("select pg_drop_replication_slot($1)", name)


async def test_transactions_that_the_slot_would_wait_for_are_reported(
    link: Link, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.postgres.database.checks.LONG", 0)
    async with await Link.connect(empty_dsn, application_name="other") as other:
        await other.query("begin; insert into orders values (1)")
        [told] = of(await check(empty_dsn, spec(), fresh()), "warning")
    assert "waits for transactions that are open, the oldest of which is that of pid" in told


async def slots_feed(dsn: str, slot: str) -> Any:
    from headrace.sources.postgres.connection.feed import Feed

    return await Feed.start(dsn, slot=slot, publication="any", position=1, application_name="debezium")
