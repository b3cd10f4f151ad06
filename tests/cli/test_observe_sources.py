"""`headrace observe`: sources that capture tables, their backfills, and the effect of keys on them."""

from __future__ import annotations

from itertools import product

import pytest
import pytest_asyncio

from headrace import store
from headrace.admin import Admin
from headrace.cli.observe.screens.dialogs import TextPage
from headrace.cli.observe.screens.home import HomeScreen
from headrace.cli.observe.screens.source import SourceScreen
from headrace.client import Remote, Server
from tests.cli.capturing import captured
from tests.cli.observing import in_front_of
from tests.support.serving import serving

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def admin(database: store.Database) -> Admin:
    await store.create_stream(database, "orders")
    return Admin(database)


# --- what is shown


@pytest.mark.parametrize("size", [(80, 24), (110, 36), (160, 50), (250, 70)])
async def test_sources_are_shown_below_with_their_problems(
    database: store.Database, admin: Admin, size: tuple[int, int]
) -> None:
    shop = await captured(database, "shop")
    await shop.backfill("public.orders", 1000, 450)
    await shop.report("running", behind=2_500_000, held_back=16_000_000, wal_status="reserved")
    bank = await captured(database, "bank")
    await bank.report("stopped", "The table is gone.", "create table public.orders ()")
    async with in_front_of(admin, size=size) as person:
        assert all(len(line) <= size[0] for line in person.lines)
        assert person.line("Sources 2")
        line = person.line("shop", "running", "2.5 MB", "16 MB", "45%")
        assert ("orders" in line) == (size[0] >= 110)
        stopped = person.line("bank", "stopped", "The table is")
        assert ("To fix it: create table public.orders ()" in stopped) == (size[0] >= 160)
        assert person.line("in/s", "sources 1 stopped")


async def test_without_sources_there_is_no_table_of_them(database: store.Database, admin: Admin) -> None:
    async with in_front_of(admin) as person:
        assert "Sources" not in person.text
        await person.press("4", "c")
        assert "Select a source first" in person.notifications
        await store.create_source(database, "hooks", "webhook", "orders", {})
        await person.poll()
        assert person.line("Sources 1")
        assert "webhook" in person.line("hooks")
        await person.press("4")
        assert person.observer.screen.query_one("#sources").has_focus
        await person.press("p")
        assert "Only sources that capture tables can be paused" in person.notifications
        await admin.delete_source("hooks")
        await person.poll()
        assert "Sources" not in person.text
        assert person.observer.screen.query_one("#consumers").has_focus


async def test_the_rate_of_a_capture_is_shown_from_the_second_update_on(database: store.Database, admin: Admin) -> None:
    shop = await captured(database)
    await shop.report("running", behind=0, held_back=10)
    async with in_front_of(admin) as person:
        await shop.append(1000)
        await person.poll()
        assert person.observer.snapshot is not None
        rate = person.observer.snapshot.sources[0].changes_rate
        assert rate is not None
        assert rate > 0


async def test_each_state_has_its_word(database: store.Database, admin: Admin) -> None:
    for name, state in (("a", "waiting"), ("b", "starting"), ("c", "running")):
        await (await captured(database, name)).report(state, "The stream is full." if state == "waiting" else None)
    alarmed = await captured(database, "d")
    await alarmed.report("running", held_back=5_000_000_000, alarm="It holds back 5 GB.")
    held = await captured(database, "e")
    await store.pause_capture(database, held.id, paused=True)
    await store.create_source(database, "f", "postgres", "orders", {"tables": ["public.f"]})
    partly = await captured(database, "g")
    await partly.report("running", "The table public.items is gone.", "edit it")
    async with in_front_of(admin, size=(200, 40)) as person:
        assert person.observer.snapshot is not None
        assert [one.name for one in person.observer.snapshot.sources] == ["a", "d", "f", "g", "b", "c", "e"]
        assert person.line("g ", "degraded", "The table public.items is gone. To fix it: edit it")
        assert person.line("a ", "waiting", "The stream is full.")
        assert person.line("b ", "starting")
        assert person.line("c ", "running")
        assert person.line("d ", "alarm", "It holds back 5 GB.")
        assert person.line("e ", "paused")
        assert person.line("f ", "unattended", "no process captures it")
        assert person.line("in/s", "sources 1 alarm")


# --- details


async def test_a_source_opens_with_its_backfills_and_what_failed(database: store.Database, admin: Admin) -> None:
    shop = await captured(database, "shop", "public.orders", "public.items", where="data.record.total > 100")
    await shop.backfill("public.orders", 2000, 500)
    await shop.fail("street", "town")
    await shop.report(
        "stopped", "The slot is gone.", "headrace source postgres resume shop --anew",
        behind=10, held_back=99_000_000, wal_status="lost", alarm="The slot is lost.",
    )  # fmt: skip
    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        await person.press("enter")
        assert isinstance(person.observer.screen, SourceScreen)
        await person.until(lambda: "no street" in person.text)
        assert person.line("public.orders", "running", "500", "2,000", "25%")
        assert person.line("state", "stopped")
        assert person.line("The slot is gone.")
        assert person.line("headrace source postgres resume shop --anew")
        assert person.line("slot", "lost")
        assert person.line("data.record.total > 100")
        await person.press("enter")
        assert isinstance(person.observer.screen, TextPage)
        assert person.line("read", "500 rows of an estimated 2,000")
        await person.press("escape")
        await person.select("failed", "town")
        assert person.line('"id": 7')
        await person.press("enter")
        assert person.line("ValueError: no town")


async def test_a_backfill_that_is_open_is_updated_at_each_interval(database: store.Database, admin: Admin) -> None:
    shop = await captured(database, "shop", "public.orders", "public.items")
    await shop.backfill("public.orders", 2000, 500)
    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        await person.press("enter")
        await person.until(lambda: "25%" in person.text)
        await shop.append(0, chunks=[store.ChunkDone(id=1, place=[9], read=500, published=500, done=False)])
        await store.start_backfill(database, shop.id, "public.items")
        await person.poll()
        assert person.line("public.orders", "running", "50%")
        assert person.line("public.items", "queued")


async def test_an_open_screen_closes_when_its_source_is_removed(database: store.Database, admin: Admin) -> None:
    shop = await captured(database)
    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        await person.press("enter")
        await store.delete_source(database, shop.id)
        await person.poll()
        assert isinstance(person.observer.screen, HomeScreen)
        assert "The source shop was removed." in person.notifications


# --- changes

NO = ("n", "escape", "enter")


async def test_nothing_is_changed_without_a_yes(database: store.Database, admin: Admin) -> None:
    shop = await captured(database)
    await shop.backfill("public.orders", 10, 5)
    await shop.fail("street")
    before = (await store.sources_at_work(database), await store.capture_failures(database, shop.id))
    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        for key, no in zip(("p", "c", "p"), NO, strict=True):
            await person.ask(key)
            await person.answer(no)
        await person.press("enter")
        await person.until(lambda: "no street" in person.text)
        for key, no in product(("p", "c", "R"), NO):
            await person.ask(key)
            await person.answer(no)
    assert (await store.sources_at_work(database), await store.capture_failures(database, shop.id)) == before


async def test_p_pauses_and_resumes_a_source(database: store.Database, admin: Admin) -> None:
    shop = await captured(database)
    await shop.report("running")
    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        assert "The captured server keeps all WAL" in await person.ask("p")
        await person.answer("y")
        assert (await shop.info()).state == "paused"
        assert "shop is paused" in person.notifications
        assert person.line("shop", "paused")
        assert "from where it was paused" in await person.ask("p")
        await person.answer("y")
        assert (await shop.info()).state == "unattended"
        assert "shop is resumed" in person.notifications


@pytest.mark.long
async def test_c_cancels_all_backfills_of_a_source_or_the_one_under_the_cursor(
    database: store.Database, admin: Admin
) -> None:
    shop = await captured(database, "shop", "public.orders", "public.items")
    await shop.backfill("public.orders", 1000, 450)
    await store.start_backfill(database, shop.id, "public.items")
    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        await person.press("enter")
        await person.select("backfills", "public.items")
        assert "stops reading rows of public.items" in await person.ask("c")
        await person.answer("y")
        await person.until(lambda: "cancelled" in person.text)
        assert {one.table: one.state for one in await store.backfills(database)} == {
            "public.items": "cancelled", "public.orders": "running",
        }  # fmt: skip
        await person.select("backfills", "public.items")
        await person.press("c")
        assert "public.items is already cancelled" in person.notifications
        await person.press("escape")
        await person.select("sources", "shop")
        assert "public.orders (450 rows read)" in await person.ask("c")
        await person.answer("y")
        assert {one.state for one in await store.backfills(database)} == {"cancelled"}
        await person.press("c")
        assert "shop has no queued or running backfill" in person.notifications


@pytest.mark.long
async def test_r_retries_one_failed_change_and_shift_r_all(database: store.Database, admin: Admin) -> None:
    shop = await captured(database)
    await shop.fail("street", "town", "river")

    async def retried() -> list[str | None]:
        return [one.key for one in await store.capture_failures(database, shop.id) if one.retry]

    async with in_front_of(admin) as person:
        await person.select("sources", "shop")
        await person.press("enter")
        await person.until(lambda: "no street" in person.text)
        await person.press("r")
        assert "Select a failed change first" in person.notifications
        await person.select("failed", "town")
        assert "the failed change 2 again" in await person.ask("r")
        await person.answer("y")
        assert await retried() == ["town"]
        assert "all 3 failed changes again" in await person.ask("R")
        await person.answer("y")
        assert await retried() == ["street", "town", "river"]


@pytest.mark.long
async def test_it_does_the_same_over_a_server(database: store.Database, dsn: str, admin: Admin) -> None:
    shop = await captured(database)
    await shop.backfill("public.orders", 1000, 450)
    with serving(dsn) as url:
        async with Remote(Server(url)) as remote, in_front_of(remote) as person:
            assert person.line("shop", "45%")
            await person.select("sources", "shop")
            await person.ask("c")
            await person.answer("y")
            assert [one.state for one in await store.backfills(database)] == ["cancelled"]
            await person.ask("p")
            await person.answer("y")
            assert (await shop.info()).state == "paused"
            await person.press("enter")
            await person.until(lambda: "cancelled" in person.text)
