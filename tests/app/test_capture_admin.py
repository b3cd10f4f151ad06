"""The admin of sources that capture tables: creating, showing, changing, repairing and removing
them, on real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from headrace import store
from headrace.admin import Admin
from headrace.model.conditions import field
from headrace.model.errors import ConfigurationError, InUse, InvalidFilter, InvalidInput, LeaseLost, UnknownSource
from headrace.model.sources import SlotRemains, SourceExists
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec
from headrace.store import CaptureBatch, CaptureFailure
from tests.support.capturers import begun
from tests.support.captures import capturing, slots_dropped, until, until_state

pytestmark = pytest.mark.asyncio

ORDERS = PostgresSpec(name="orders", stream="orders", tables=("public.orders", "public.items"))
NOWHERE = "postgresql://shop:hush@127.0.0.1:1/shop"


@pytest_asyncio.fixture
async def admin(database: store.Database, dsn: str) -> AsyncIterator[Admin]:
    """An admin of a database with the tables `orders` and `items`, of which none is captured."""
    for table in ("orders", "items"):
        await database.fetchval(f"create table {table} (id int primary key, total numeric)")
    async with slots_dropped(dsn):
        yield Admin(database)


class TestMaking:
    async def test_a_source_and_its_stream_are_made(self, admin: Admin) -> None:
        assert await admin.create_source(ORDERS)
        source = await admin.source("orders")
        assert (source.kind, source.stream, source.settings["tables"]) == ("postgres", "orders", list(ORDERS.tables))
        assert source.capture is not None
        assert source.capture.state == "unattended"
        assert not (await admin.stream("orders")).one_message_per_key

    async def test_a_stream_that_is_in_use_is_filled_only_if_that_is_said(self, admin: Admin) -> None:
        await admin.create_stream("orders")
        await admin.create_consumer(ConsumerSpec(stream="orders", name="ship"))
        with pytest.raises(InvalidInput, match="'orders' exists, with 0 messages and 1 consumer") as refused:
            await admin.create_source(ORDERS)
        assert refused.value.field == "into_existing"
        assert await admin.sources() == []
        assert await admin.create_source(ORDERS, into_existing=True)
        assert not await admin.create_source(ORDERS), "it exists, so nothing new would come"

    async def test_rows_get_a_stream_that_keeps_the_last_of_each_key(self, admin: Admin) -> None:
        await admin.create_source(PostgresSpec(name="rows", stream="rows", tables=("public.orders",), mode="rows"))
        assert (await admin.stream("rows")).one_message_per_key

    async def test_rows_do_not_go_into_a_stream_that_keeps_all(self, admin: Admin) -> None:
        await admin.create_stream("plain")
        await admin.create_stream(StreamSpec(name="latest", one_message_per_key=True))
        rows = PostgresSpec(name="rows", stream="plain", tables=("public.orders",), mode="rows")
        with pytest.raises(ConfigurationError, match="'plain' keeps every message"):
            await admin.create_source(rows)
        assert await admin.sources() == []
        assert await admin.create_source(msgspec.structs.replace(rows, stream="latest"))
        assert await admin.create_source(PostgresSpec(name="all", stream="latest", tables=("public.items",)))

    async def test_making_it_again_is_fine_as_long_as_it_is_the_same(self, admin: Admin) -> None:
        spec = msgspec.structs.replace(ORDERS, database=NOWHERE)
        assert await admin.create_source(spec)
        assert not await admin.create_source(spec)
        assert not await admin.create_source(msgspec.structs.replace(spec, database=NOWHERE.replace("hush", "…")))
        for change in (
            {"stream": "others"},
            {"rate": 5},
            {"numeric": "number"},
            {"database": NOWHERE.replace("hush", "new")},
        ):
            with pytest.raises(SourceExists, match=next(iter(change))) as refused:
                await admin.create_source(msgspec.structs.replace(spec, **change))
            assert "hush" not in str(refused.value)
            assert "new@" not in str(refused.value)
        with pytest.raises(SourceExists, match="kind"):
            await admin.create_source(WebhookSpec(name="orders", stream="orders"))
        assert [one.name for one in await admin.streams()] == ["orders"]

    async def test_a_password_is_never_shown_and_a_hidden_password_is_refused(
        self, admin: Admin, database: store.Database
    ) -> None:
        await admin.create_source(msgspec.structs.replace(ORDERS, database=NOWHERE))
        for source in (await admin.source("orders"), *await admin.sources()):
            assert source.settings["database"] == NOWHERE.replace("hush", "…")
        hidden = msgspec.structs.replace(ORDERS, name="other", database=NOWHERE.replace("hush", "…"))
        with pytest.raises(InvalidInput, match="Write the password"):
            await admin.create_source(hidden)


class TestEditing:
    async def test_an_edit_changes_the_given_settings_and_checks_all(self, admin: Admin) -> None:
        await admin.create_source(msgspec.structs.replace(ORDERS, columns={"public.items": ("id",)}))
        before = await admin.source("orders")
        changed = await admin.edit_source(
            before.id, rate=10, heartbeat="1m", where=field("record.total") > 5, tables=["public.orders"], alarm=10**10
        )
        assert changed.settings == {
            **before.settings, "rate": 10, "heartbeat": 60.0, "where": "data.record.total > 5",
            "tables": ["public.orders"], "columns": {}, "alarm": 10**10,
        }  # fmt: skip
        for fixed in ("name", "stream", "mode", "slot", "publication", "signature", "nonsense"):
            with pytest.raises(
                InvalidInput, match=f"^{fixed} of a postgres source can't be changed. You can change tables"
            ):
                await admin.edit_source("orders", **{fixed: "x"})
        with pytest.raises(ConfigurationError, match="rate"):
            await admin.edit_source("orders", rate=0)
        with pytest.raises(ConfigurationError, match="tables"):
            await admin.edit_source("orders", tables=[])
        with pytest.raises(ConfigurationError, match="deletes"):
            await admin.edit_source("orders", deletes="sometimes")
        assert await admin.source("orders") == changed

    async def test_an_edit_with_a_url_as_it_is_shown_keeps_the_password(
        self, admin: Admin, database: store.Database
    ) -> None:
        await admin.create_source(msgspec.structs.replace(ORDERS, database=NOWHERE))
        shown = (await admin.source("orders")).settings["database"]
        await admin.edit_source("orders", database=shown, rate=7)
        assert (await store.source_with_secrets(database, "orders")).settings["database"] == NOWHERE
        with pytest.raises(InvalidInput, match="Write the password"):  # nor is it sent to another host
            await admin.edit_source("orders", database=shown.replace("127.0.0.1", "example.org"))
        await admin.edit_source("orders", database=None)
        assert (await admin.source("orders")).settings["database"] is None

    async def test_nothing_is_appended_under_settings_that_have_changed(
        self, admin: Admin, database: store.Database
    ) -> None:
        await admin.create_source(ORDERS)
        number, epoch = await begun(database, "orders")
        await store.append_captured(
            database, number, epoch, "orders", CaptureBatch(keys=["a"], data=["1"], position="0/20")
        )
        await admin.edit_source("orders", numeric="number")
        with pytest.raises(LeaseLost):
            await store.append_captured(database, number, epoch, "orders", CaptureBatch(keys=["a"], data=["1"]))
        assert (
            await store.take_capture(database, number, uuid4(), 60) is not None
        )  # the process that knows the new settings gets the lease immediately

    async def test_new_tables_of_a_source_are_read_from_their_first_row_on(
        self, admin: Admin, database: store.Database
    ) -> None:
        await admin.create_source(msgspec.structs.replace(ORDERS, tables=("public.orders",)))
        await admin.edit_source("orders", tables=["public.orders", "public.a"])
        assert await admin.backfills() == []  # the capture has not begun, and will read all tables when it does
        number, epoch = await begun(database, "orders")
        await admin.edit_source("orders", tables=["public.orders", "public.a", "public.b"])
        assert [one.table for one in await admin.backfills("orders")] == ["public.b"]
        with pytest.raises(LeaseLost):  # a process that does not know the table yet can't fail its backfill
            await store.fail_backfill(database, number, epoch, 1, "unknown")
        await admin.edit_source("orders", tables=["public.c"], backfill=False)
        assert [one.table for one in await admin.backfills("orders")] == ["public.b"]


class TestPausing:
    async def test_a_paused_source_is_captured_by_no_process_until_it_is_resumed(
        self, admin: Admin, database: store.Database
    ) -> None:
        await admin.create_source(ORDERS)
        number, epoch = await begun(database, "orders")
        paused = await admin.pause_source("orders")
        assert paused.capture is not None
        assert (paused.capture.state, paused.capture.paused_at is None) == ("paused", False)
        assert await store.take_capture(database, number, uuid4(), 60) is None
        with pytest.raises(LeaseLost):
            await store.append_captured(database, number, epoch, "orders", CaptureBatch(position="0/30"))
        resumed = await admin.resume_source(paused.id)
        assert resumed.capture is not None
        assert (resumed.capture.state, resumed.capture.position) == ("unattended", "0/10")

    async def test_a_source_that_starts_again_forgets_its_position_and_reads_all_tables_again(
        self, admin: Admin, database: store.Database
    ) -> None:
        await admin.create_source(ORDERS)
        number, epoch = await begun(database, "orders")
        (old,) = await admin.start_backfill("orders", ["public.items"])
        await store.report_capture(database, number, epoch, "stopped", "the slot is lost", "mend")
        await admin.pause_source("orders")
        anew = (await admin.resume_source("orders", anew=True)).capture
        assert anew is not None
        assert (anew.position, anew.system_id, anew.reason, anew.mend, anew.paused_at) == (None,) * 5
        assert await store.capture_position(database, number) is None
        with pytest.raises(LeaseLost):
            await store.append_captured(database, number, epoch, "orders", CaptureBatch(position="0/30"))
        states = {one.id: (one.table, one.state) for one in await admin.backfills("orders")}
        assert states.pop(old.id) == ("public.items", "cancelled")
        assert sorted(states.values()) == [("public.items", "queued"), ("public.orders", "queued")]

    async def test_a_source_that_captures_nothing_is_neither_paused_nor_read(self, admin: Admin) -> None:
        await admin.create_stream("orders")
        await admin.create_source(WebhookSpec(name="hook", stream="orders"))
        for call in (
            admin.pause_source, admin.resume_source, admin.check_source, admin.start_backfill, admin.backfills,
            admin.cancel_backfills, admin.failures, admin.retry_failures, admin.drop_failures,
        ):  # fmt: skip
            with pytest.raises(InvalidInput, match=r"captures no tables\. It is a source of the kind 'webhook'"):
                await call("hook")  # type: ignore[operator]
            with pytest.raises(UnknownSource):
                await call("nope")  # type: ignore[operator]


class TestBackfills:
    async def test_a_backfill_of_all_tables_leaves_out_those_that_are_being_read(self, admin: Admin) -> None:
        await admin.create_source(ORDERS)
        (items,) = await admin.start_backfill("orders", ["public.items", 'public."items"'], rate=5)
        assert (items.source, items.table, items.state, items.rate) == ("orders", "public.items", "queued", 5)
        with pytest.raises(InUse, match=r"of public\.items is queued or running"):
            await admin.start_backfill("orders", ["public.orders", "public.items"])
        (orders,) = await admin.start_backfill("orders")
        assert orders.table == "public.orders"
        with pytest.raises(InUse, match=r"public\.orders, public\.items"):
            await admin.start_backfill("orders")
        assert [one.id for one in await admin.backfills()] == [orders.id, items.id]

    async def test_a_condition_is_checked_against_the_table(self, admin: Admin) -> None:
        await admin.create_source(ORDERS)
        (begun,) = await admin.start_backfill("orders", ["public.items"], where="data.record.total > 5")
        assert begun.where == {"field": "data.record.total", "op": ">", "value": 5}
        for where in ("data.record.nope > 5", "data.record.total >", "seq > 5"):
            with pytest.raises(InvalidFilter):
                await admin.start_backfill("orders", ["public.orders"], where=where)
        assert len(await admin.backfills()) == 1

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"tables": ["public.nope"]}, r"Its tables are public\.orders, public\.items"),
            ({"rate": 0}, "rate"),
            ({"rate": 2**31}, "rate"),
        ],
    )
    async def test_an_invalid_backfill_is_refused(self, admin: Admin, given: dict[str, Any], text: str) -> None:
        await admin.create_source(ORDERS)
        with pytest.raises(InvalidInput, match=text):
            await admin.start_backfill("orders", **given)
        assert await admin.backfills() == []

    async def test_backfills_are_cancelled_one_by_one_or_all(self, admin: Admin) -> None:
        await admin.create_source(ORDERS)
        first, _ = await admin.start_backfill("orders")
        assert await admin.cancel_backfills("orders", str(uuid4())) == 0
        assert await admin.cancel_backfills("orders", first.id) == 1
        assert await admin.cancel_backfills("orders") == 1
        assert {one.state for one in await admin.backfills()} == {"cancelled"}
        with pytest.raises(InvalidInput, match="not the id of a backfill"):
            await admin.cancel_backfills("orders", "nope")


async def test_a_lost_slot_is_reported_with_a_repair_that_works(
    admin: Admin, database: store.Database, dsn: str
) -> None:
    await database.fetchval("insert into orders values (1, 1)")
    await admin.create_source(msgspec.structs.replace(ORDERS, tables=("public.orders",)))
    async with capturing(dsn):
        await until(database, "select state = 'done' from headrace_internal.backfills")
    await database.fetchval(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
    )
    await database.fetchval("insert into orders values (2, 2)")
    async with capturing(dsn):
        lost = await until_state(database, "orders", "stopped")
        assert lost.mend == "headrace source postgres resume orders --anew"
        (finding,) = [one for one in await admin.check_source("orders") if one.level == "error"]
        assert (finding.what, finding.hint) == ("capture", lost.mend)
        await admin.resume_source("orders", anew=True)
        await until(database, "select count(*) = 2 from headrace_internal.backfills where state = 'done'")
        await until_state(database, "orders", "running")
    assert {one.key for one in await admin.messages("orders")} == {"public.orders.1", "public.orders.2"}


async def test_failed_changes_are_seen_retried_and_dropped(admin: Admin, database: store.Database) -> None:
    await admin.create_source(ORDERS)
    number, epoch = await begun(database, "orders")
    failures = [CaptureFailure(key=f"k{n}", data=f'{{"n": {n}}}', error="no such luck") for n in range(3)]
    await store.append_captured(database, number, epoch, "orders", CaptureBatch(failures=failures))
    first, second, _ = await admin.failures("orders")
    assert (first.key, first.data, first.error, first.retry) == ("k0", {"n": 0}, "no such luck", False)
    assert await admin.failures("orders", above=first.id, limit=1) == [second]
    assert await admin.retry_failures("orders", [first.id, 10**9]) == 1
    assert [one.retry for one in await admin.failures("orders")] == [True, False, False]
    assert await admin.drop_failures("orders", [second.id]) == 1
    assert await admin.drop_failures("orders", []) == 0
    assert await admin.retry_failures("orders") == 1
    assert await admin.drop_failures("orders") == 2
    for wrong in (0, True, 2**63, "1"):
        with pytest.raises(InvalidInput, match="whole numbers"):
            await admin.drop_failures("orders", [wrong])  # type: ignore[list-item]


class TestRemoving:
    @pytest.mark.long
    async def test_removing_a_source_that_is_captured_drops_its_slot_and_publication(
        self, admin: Admin, database: store.Database, dsn: str
    ) -> None:
        await admin.create_source(ORDERS)
        async with capturing(dsn):
            await until_state(database, "orders", "running")
            assert await database.fetchval("select count(*) from pg_publication") == 1
            assert await admin.delete_source("orders") is None
            await until(
                database, "select count(*) = 0 from pg_stat_replication where application_name like 'headrace capture%'"
            )
        assert await database.fetchval("select count(*) from pg_publication") == 0
        assert (
            await database.fetchval("select count(*) from pg_replication_slots where database = current_database()")
            == 0
        )
        assert await admin.sources() == []
        assert (await admin.stream("orders")).name == "orders"

    async def test_a_source_that_was_never_captured_leaves_nothing(self, admin: Admin) -> None:
        await admin.create_source(ORDERS)
        assert await admin.delete_source("orders") is None
        assert await admin.sources() == []

    @pytest.mark.parametrize("paused", [False, True])
    async def test_a_slot_that_can_not_be_dropped_keeps_the_source_or_is_reported_with_force(
        self, admin: Admin, paused: bool
    ) -> None:
        await admin.create_source(msgspec.structs.replace(ORDERS, database=NOWHERE))
        if paused:
            await admin.pause_source("orders")
        with pytest.raises(SlotRemains, match=r"select pg_drop_replication_slot\('headrace_orders_") as refused:
            await admin.delete_source("orders")
        assert 'drop publication if exists "headrace_orders_' in str(refused.value)
        assert "hush" not in str(refused.value)
        source = await admin.source("orders")
        assert source.capture is not None
        assert (source.capture.paused_at is not None) == paused
        left = await admin.delete_source("orders", force=True)
        assert left is not None
        assert "pg_drop_replication_slot" in left
        assert await admin.sources() == []

    async def test_a_slot_and_a_publication_that_the_operator_named_stay(self, admin: Admin) -> None:
        await admin.create_source(
            msgspec.structs.replace(ORDERS, database=NOWHERE, slot="theirs", publication="theirs")
        )
        assert await admin.delete_source("orders") is None

    async def test_a_stream_into_which_tables_are_captured_is_not_deleted_even_by_force(self, admin: Admin) -> None:
        await admin.create_source(ORDERS)
        for force in (False, True):
            with pytest.raises(InUse, match="headrace source rm orders"):
                await admin.delete_stream("orders", force=force)
        await admin.delete_source("orders")
        await admin.delete_stream("orders")
