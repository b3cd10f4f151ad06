"""An upgrade keeps what users made, gives way to long transactions, and leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.app.heartbeats import Heartbeats
from headrace.model.errors import InUse, SchemaError, StoreError
from headrace.store.database import migrations, revisions
from tests.conftest import Connect
from tests.support.readers import begun, live_revision
from tests.support.servers import opened
from tests.upgrade.revisions import add_revision

pytestmark = pytest.mark.asyncio

COLUMN = "alter table headrace_internal.consumers add column note text"


@pytest_asyncio.fixture
async def other(dsn: str) -> AsyncIterator[store.Database]:
    """The database as another process has it."""
    async with opened(dsn) as database:
        yield database


async def beat(database: store.Database, revision: int) -> None:
    """Write the heartbeat of a process of another revision."""
    facts = msgspec.structs.replace(Heartbeats(database, dict).facts(), revision=revision, host="elsewhere")
    await store.record_heartbeat(database, uuid4(), facts)


def add_feature(monkeypatch: pytest.MonkeyPatch) -> int:
    """Add a revision with a feature that older processes can't bear. Returns its number."""
    needs = revisions.newest_revision() + 1
    return add_revision(monkeypatch, f"insert into headrace_internal.features values ('wide_rows', {needs})")


async def old_history(database: store.Database) -> None:
    """Let the last recovery be an hour ago."""
    await database.fetch("update headrace_internal.history set since = since - interval '1 hour'")


async def test_grants_comments_and_views_of_users_survive_an_upgrade(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create_stream(database, "orders")
    for statement in (
        "grant execute on function headrace.create_stream to pg_monitor",
        "grant select on headrace.streams to pg_monitor",
        "comment on view headrace.streams is 'mine'",
        "create view public.mine as select name, messages from headrace.streams",
        "create view public.behind as select * from headrace.sequences_behind()",
    ):
        await database.fetch(statement)
    grants = """select (select proacl::text from pg_proc where proname = 'create_stream' and pronamespace = 'headrace'::regnamespace),
                       (select relacl::text from pg_class where oid = 'headrace.streams'::regclass)"""
    before = tuple(await database.fetchrow(grants))
    add_revision(monkeypatch, COLUMN, functions="-- newer")
    assert len(await store.migrate(database)) == 2
    assert tuple(await database.fetchrow(grants)) == before
    assert "pg_monitor" in before[0]
    assert [tuple(row) for row in await database.fetch("select * from public.mine")] == [("orders", 0)]
    assert await database.fetch("select * from public.behind") == []


async def test_a_reader_of_a_view_that_stays_the_same_is_not_in_the_way(
    database: store.Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump holds such locks for hours."""
    add_revision(monkeypatch, "select 1")
    async with begun(connect) as (reader, transaction):
        await reader.fetch("select * from headrace.streams")
        assert len(await store.migrate(database)) == 2
        await transaction.rollback()


async def test_a_view_gets_further_columns_at_its_end(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_revision(monkeypatch, "select 1")
    text = revisions.functions().replace(
        "i.settings, i.created_at, i.updated_at\nfrom", "i.settings, i.created_at, i.updated_at, 7 as more\nfrom"
    )
    monkeypatch.setattr(revisions, "functions", lambda: text)
    await store.create_stream(database, "orders")
    await store.migrate(database)
    assert await database.fetchval("select more from headrace.streams") == 7


async def test_an_upgrade_gives_way_to_a_long_transaction_and_names_it(
    database: store.Database, other: store.Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its tries, the others work. On a slow machine, a try may end before its watch has looked."""
    add_revision(monkeypatch, COLUMN)
    monkeypatch.setattr(migrations, "REPORT_INTERVAL", 0.0)
    reported: list[str] = []
    tries = 0
    async with begun(connect) as (holder, transaction):
        await holder.execute("set application_name = 'nightly report'")
        await holder.fetch("select count(*) from headrace_internal.consumers")

        async def sleep(_: float) -> None:
            nonlocal tries
            tries += 1
            await other.fetch("select count(*) from headrace_internal.consumers")  # it would wait behind the upgrade
            assert await store.schema_version(other) == revisions.newest_revision() - 1
            if tries >= 3 and "nightly report" in reported[-1]:
                await transaction.rollback()

        patience = store.Patience(timeout=60, report=reported.extend, sleep=sleep)
        assert len(await store.migrate(database, patience=patience)) == 2
    assert "select count(*) from headrace_internal.consumers" in reported[-1]


async def test_an_upgrade_reports_what_it_waits_for_at_first_and_every_ten_seconds(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_revision(monkeypatch, "select 1", serves_from=revisions.newest_revision() + 1)
    await beat(database, 1)
    now, reports = 100.0, list[float]()
    monkeypatch.setattr(migrations, "monotonic", lambda: now)

    async def sleep(_: float) -> None:
        nonlocal now
        now += 4.0
        if now > 120:
            await database.fetch("delete from headrace_internal.workers")

    await store.migrate(database, patience=store.Patience(report=lambda _: reports.append(now), sleep=sleep))
    assert reports == [100, 112]


async def test_an_upgrade_that_waited_too_long_says_for_what_and_changes_nothing(
    database: store.Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = add_revision(monkeypatch, COLUMN)
    async with begun(connect) as (holder, transaction):
        await holder.fetch("select count(*) from headrace_internal.consumers")
        refusal = "a lock of another session"  # until the watch of a try has seen it, see above
        async with asyncio.timeout(60):
            while "a lock of another session" in refusal:
                with pytest.raises(InUse, match=r"not upgraded within 0 s\. It waits for: ") as refused:
                    await store.migrate(database, patience=store.Patience(timeout=0))
                refusal = str(refused.value)
        assert re.search(r"It waits for: the session \d+ of .*idle in transaction", refusal)
        await transaction.rollback()
    assert await store.schema_version(database) == version - 1


async def test_an_upgrade_waits_for_processes_that_it_would_not_serve(
    database: store.Database, other: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await beat(database, 1)
    first = add_revision(monkeypatch, "select 1")
    version = add_revision(monkeypatch, "select 1", serves_from=first)
    reported: list[str] = []

    async def sleep(_: float) -> None:
        await other.fetch("delete from headrace_internal.workers")

    patience = store.Patience(report=reported.extend, sleep=sleep)
    plan = await store.plan_migration(database)
    await store.migrate(database, patience=patience)
    assert list(plan.in_the_way) == reported
    assert f"of elsewhere, which has revision 1 and the new schema serves from revision {first} on" in reported[0]
    state = await store.schema_state(database)
    assert (state.revision, state.serves_from) == (version, first)


async def is_on(database: store.Database) -> bool:
    return await database.fetchval("select headrace_internal.feature_is_on('wide_rows')")


async def test_a_feature_is_switched_on_when_the_last_older_process_has_gone(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as new:
        version = add_feature(new)
        await store.migrate(database)
        await old_history(database)
        await beat(database, version - 1)
        await beat(database, version)
        assert await live_revision(database) == version - 1
        assert await store.switch_on_features(database) == []
        assert not await is_on(database)
        await store.require_current_schema(database)
        await database.fetch("delete from headrace_internal.workers where facts ->> 'revision' = $1", str(version - 1))
        assert await store.switch_on_features(database) == ["wide_rows"]
        assert await is_on(database)
        assert await store.switch_on_features(database) == []
    refusal = rf"serves Headrace from revision {version} on. This Headrace has revision {version - 1}"
    with pytest.raises(SchemaError, match=refusal):
        await store.migrate(database)
    with pytest.raises(SchemaError, match="Upgrade Headrace"):
        await Heartbeats(database, dict).announce()
    assert await database.fetchval("select count(*) from headrace_internal.workers") == 1


async def test_after_a_recovery_no_feature_is_switched_on_until_heartbeats_are_back(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_feature(monkeypatch)
    await store.migrate(database)
    await database.fetch("update headrace_internal.history set since = clock_timestamp()")  # the last recovery
    assert await store.switch_on_features(database) == []
    await old_history(database)
    assert await store.switch_on_features(database) == ["wide_rows"]
    await database.fetch("update headrace_internal.features set switched_on_at = null")
    await database.fetch("delete from headrace_internal.history")
    assert await store.switch_on_features(database) == []


async def test_a_fresh_schema_has_all_features(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_feature(monkeypatch)
    async with opened(empty_dsn) as database:
        await store.migrate(database)
        assert await is_on(database)


async def test_a_process_at_work_reports_a_function_that_was_removed(database: store.Database) -> None:
    """As an outage, which its loops wait out."""
    await database.fetch("alter function headrace_internal.worker_info rename to gone")
    await database.fetch("""
        update headrace_internal.migrations set version = 99, serves_from = 99
        where version = (select max(version) from headrace_internal.migrations)""")
    with pytest.raises(StoreError, match=r"worker_info.* has revision 99, and serves Headrace from revision 99 on"):
        await store.workers(database)


async def test_an_app_that_does_not_migrate_refuses_an_older_schema(
    dsn: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with App(dsn, migrate=False):
        pass
    with pytest.raises(SchemaError, match=r"has no Headrace schema. Run `headrace migrate`"):
        async with App(empty_dsn, migrate=False):
            pass
    monkeypatch.setenv("HEADRACE_MIGRATE", "off")
    version = add_revision(monkeypatch, "select 1")
    with pytest.raises(SchemaError, match=rf"needs revision {version}. Run `headrace migrate` of this version first"):
        async with App(dsn):
            pass


async def test_heartbeats_name_the_revision(database: store.Database) -> None:
    await Heartbeats(database, dict).announce()
    facts = json.loads(await database.fetchval("select facts::text from headrace_internal.workers"))
    assert facts["revision"] == revisions.newest_revision()


async def test_a_schema_of_a_development_version_is_refused_with_the_statement_that_removes_it(
    database: store.Database,
) -> None:
    await database.fetch("update headrace_internal.migrations set name = 'tables'")
    with pytest.raises(SchemaError, match="development version") as refusal:
        await store.migrate(database)
    statement = re.search(r"drop schema .* cascade", str(refusal.value))
    assert statement is not None
    await database.fetch(statement[0])
    assert len(await store.migrate(database)) == 2
