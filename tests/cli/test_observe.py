"""`headrace observe`: what it shows, and the effect of its keys on the database."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from itertools import count, product
from uuid import uuid4

import msgspec
import pytest

from headrace import store
from headrace.admin import Admin
from headrace.admin.live import reading
from headrace.cli.observe.screens.consumer import ConsumerScreen
from headrace.cli.observe.screens.dialogs import AskFilter, AskPlace, TextPage
from headrace.cli.observe.screens.home import HomeScreen
from headrace.cli.observe.screens.stream import PAGE_SIZE, StreamScreen
from headrace.client import Remote, Server
from headrace.model.outcomes import Failure
from headrace.model.records import ConsumerAtWork, WorkerFacts
from headrace.model.watching.live import LiveSnapshot
from tests.cli.observing import in_front_of
from tests.conftest import Declare
from tests.support.readers import Reader, publish
from tests.support.serving import serving

pytestmark = pytest.mark.asyncio


@pytest.fixture
def admin(database: store.Database) -> Admin:
    return Admin(database)


async def _with_dead_letters(ship: Reader, count: int = 2) -> None:
    await publish(ship.executor, *(f"k{number}" for number in range(count)))
    batch = await ship.lease()
    await ship.reject(batch, error="no such street")


# --- what is shown


@pytest.mark.parametrize("size", [(80, 24), (110, 36), (160, 50), (250, 70)])
async def test_everything_is_there_and_no_line_is_longer_than_the_terminal(
    database: store.Database, admin: Admin, declare: Declare, size: tuple[int, int]
) -> None:
    ship = await declare("ship")
    await declare("bill")
    await publish(database, "a", "b", "c", "d", "e")
    batch = await ship.lease(limit=3)
    await ship.reject(batch, batch.seqs[0])
    await store.pause(database, ship.id)
    facts = WorkerFacts(
        host="worker-7", pid=4711, kind="run", version="1.2", started_at=datetime.now(UTC),
        consumers=[ConsumerAtWork(stream="orders", name="bill", actors=16, busy=3, reason="trying: all are busy")],
    )  # fmt: skip
    await store.record_heartbeat(database, uuid4(), facts)
    async with in_front_of(admin, size=size) as person:
        assert all(len(line) <= size[0] for line in person.lines)
        assert person.line("Streams 1")
        assert person.line("orders", "kB").split()[:2] == ["orders", "5"]
        words = person.line("ship").split()
        if size[0] >= 160:
            assert words.pop(3).endswith("s"), "the age of the oldest message"
        #          stream    name   lag  … flight parked block dead
        figures = ["orders", "ship", "2", *(["2", "0", "0", "1"] if size[0] >= 110 else ["1"])]
        assert words[: len(figures)] == figures
        assert "paused" in person.line("ship")
        assert person.line("worker-7:4711").split()[1] == "run"
        if size[0] >= 110:
            assert "3/16" in person.line("orders", "bill")
        # Once its messages are old, it is said why it is behind.
        assert re.search("trying: all are busy|5 messages wait", person.line("orders", "bill")), (
            "the reason stays when other columns go"
        )
        for key in ("Pause", "Seek", "Redrive", "Filter", "Sort", "Help", "Quit"):
            assert key in person.lines[-1]


async def test_rates_are_shown_from_the_second_update_on(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    ship = await declare("ship")
    async with in_front_of(admin) as person:
        assert person.observer.snapshot is not None
        assert person.observer.snapshot.streams[0].publish_rate is None
        await publish(database, *["a", "b"] * 50)
        await ship.drain()
        await person.poll()
        stream, consumer = person.observer.snapshot.streams[0], person.observer.snapshot.consumers[0]
        assert stream.publish_rate == consumer.finish_rate
        assert stream.publish_rate is not None
        assert stream.publish_rate > 0
        assert "█" in person.line("orders", "everything")


async def test_an_empty_database_shows_empty_tables(admin: Admin) -> None:
    async with in_front_of(admin) as person:
        assert person.line("Streams 0")
        assert person.line("Consumers 0")
        await person.press("enter", "o", "1", "enter", "3", "enter")
        assert isinstance(person.observer.screen, HomeScreen)
        await person.press("p")
        assert "Select a consumer first" in person.notifications


async def test_states_are_words_as_well_as_colors(
    admin: Admin, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    ship = await declare("ship", on_exhausted="block", max_deliver=1)
    await publish(ship.executor, "a", "a")
    await ship.nack(await ship.lease())
    async with in_front_of(admin) as person:
        assert person.observer.no_color
        assert "blocked" in person.line("ship")


async def test_control_characters_in_names_and_data_are_escaped(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    await declare("ship")
    await store.publish(database, "orders", "a", '{"\\u009b2J [bold]": "\\u202etxt [/]"}')
    async with in_front_of(admin) as person:
        await person.select("streams", "orders")
        await person.press("enter")
        await person.until(lambda: "u202e" in person.text)
        assert "\u202e" not in person.text
        assert "\x9b" not in person.text
        assert "[bold]" in person.text


# --- details


async def test_a_stream_opens_with_its_newest_messages_and_goes_further_back(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    await declare("ship")
    await publish(database, *[f"key-{number}" for number in range(PAGE_SIZE + 5)])
    async with in_front_of(admin) as person:
        await person.select("streams", "orders")
        await person.press("enter")
        assert isinstance(person.observer.screen, StreamScreen)
        await person.until(lambda: f"key-{PAGE_SIZE + 4}" in person.text)
        assert person.line('"n": 34')  # details of the newest message, beside the table
        await person.press("down", "enter")
        assert isinstance(person.observer.screen, TextPage)
        assert person.line('"n": 33')
        assert person.line("key-33")
        await person.press("escape", "b")
        await person.until(lambda: "key-0" in person.text)
        await person.press("u")
        await person.until(lambda: "key-34" in person.text)
        await person.press("q")
        assert isinstance(person.observer.screen, HomeScreen)


async def test_a_consumer_opens_with_what_it_is_at_and_its_dead_letters(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    ship = await declare("ship")
    await publish(database, "dead", "flying", "later", "next")
    batch = await ship.lease(limit=3)
    await ship.fail(
        batch, Failure("reject", None, "ValueError: no street", "Traceback:\n  in ship.py, line 7"), batch.seqs[0]
    )
    await ship.nack(batch, batch.seqs[2], delay=3600, error="TimeoutError: no answer")
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        await person.press("enter")
        assert isinstance(person.observer.screen, ConsumerScreen)
        await person.until(lambda: "flying" in person.text)
        assert "TimeoutError: no an" in person.line("later")
        assert person.line("flying").split()[:4] == ["in", "flight", "2", "flying"]
        assert person.line("later").split()[:3] == ["parked", "3", "later"]
        assert person.line("next").split()[:3] == ["next", "4", "next"]
        assert "ValueError: no street" in person.line("dead", "rejected")
        assert person.line("in ship.py, line 7")  # the traceback, beside the table
        await person.select("in_progress", "later")
        assert person.line('"n": 2')


async def test_a_process_opens_with_all_that_it_reports(database: store.Database, admin: Admin) -> None:
    consumer = ConsumerAtWork(
        stream="orders", name="bill", actors=2, reason="fixed", rate=12.5, latency=0.2, breaker="open"
    )
    facts = WorkerFacts(
        host="h", pid=9, kind="serve", version="1", started_at=datetime.now(UTC), consumers=[consumer], more_consumers=3
    )
    await store.record_heartbeat(database, uuid4(), facts)
    async with in_front_of(admin) as person:
        await person.press("3", "enter")
        for text in ("12/s, 200 ms per message", "breaker     open", "0 of 2 busy: fixed", "3 more consumers"):
            assert person.line(text)


async def test_help_says_what_an_update_costs(admin: Admin) -> None:
    async with in_front_of(admin, interval=3600.0) as person:
        await person.press("question_mark")
        assert person.line("An update takes about 4 queries")
        await person.press("escape")
        assert isinstance(person.observer.screen, HomeScreen)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_both_the_key_and_the_shell_s_habit_quit(admin: Admin, key: str) -> None:
    async with in_front_of(admin) as person:
        assert person.observer.return_code is None
        await person.press(key)
        assert person.observer.return_code == 0


async def test_an_open_screen_closes_when_its_consumer_is_deleted(admin: Admin, declare: Declare) -> None:
    await declare("ship")
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        await person.press("enter")
        await admin.delete_consumer("orders", "ship")
        await person.poll()
        assert isinstance(person.observer.screen, HomeScreen)
        assert "was deleted" in person.notifications


# --- filter and sort


async def test_a_filter_shows_only_what_has_it_in_its_name(admin: Admin, declare: Declare) -> None:
    for name in ("ship", "bill", "shred"):
        await declare(name)
    async with in_front_of(admin) as person:
        await person.ask("slash", AskFilter)
        await person.answer(*"SH", "enter")
        assert person.line("Consumers 2 of 3")
        assert "bill" not in person.text
        await person.poll()
        assert "bill" not in person.text
        await person.ask("slash", AskFilter)
        await person.answer("backspace", "backspace", "enter")
        assert person.line("bill")


async def test_o_sorts_by_one_column_after_the_other_and_the_cursor_stays_with_its_line(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    await declare("a-slow-one")
    quick = await declare("b-quick-one")
    await publish(database, "a", "b", "c")
    await quick.drain()
    async with in_front_of(admin) as person:
        table = person.observer.screen.query_one("#consumers")
        await person.select("consumers", "b-quick-one")
        for _ in range(3):  # by stream, by name, by lag
            await person.press("o")
        assert "lag▾" in person.text
        text = person.text
        assert text.index("a-slow-one") < text.index("b-quick-one")
        assert table.current_row.name == "b-quick-one"  # type: ignore[attr-defined]


# --- changes


async def test_nothing_is_changed_without_a_yes(database: store.Database, admin: Admin, declare: Declare) -> None:
    ship = await declare("ship")
    await _with_dead_letters(ship)
    before = await store.consumers(database)
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        for key, no in product(("p", "r"), ("n", "escape", "enter")):
            await person.ask(key)
            await person.answer(no)
        await person.ask("s", AskPlace)
        await person.answer("escape")
    assert await store.consumers(database) == before


async def test_p_pauses_and_resumes(admin: Admin, declare: Declare) -> None:
    ship = await declare("ship")
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        assert "stops delivery to ship" in await person.ask("p")
        await person.answer("y")
        assert (await ship.info()).paused_until is not None
        assert "ship of orders is paused" in person.notifications
        assert "It is paused until a user" in person.line("ship", "paused")
        await person.ask("p")
        await person.answer("y")
        assert (await ship.info()).paused_until is None


async def test_the_buttons_answer_as_the_keys_do(admin: Admin, declare: Declare) -> None:
    ship = await declare("ship")
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        await person.ask("p")
        await person.pilot.click("#yes")
        await person.answer()
        assert (await ship.info()).paused_until is not None


async def test_s_moves_a_consumer_after_describing_the_effect(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    ship = await declare("ship")
    await publish(database, *"abcde")
    batch = await ship.lease(limit=4)
    await ship.nack(batch, batch.seqs[3], delay=3600)
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        await person.ask("s", AskPlace)
        await person.pilot.press(*"nowhere", "enter")
        await person.until(lambda: "is not a time" in person.text)
        await person.pilot.press(*["backspace"] * 7, *"2", "enter")
        await person.until(lambda: "moves ship" in person.text)
        text = " ".join(person.text.replace("│", " ").split())
        assert "from seq 4 to seq 2" in text
        assert "3 in flight, 1 parked" in text
        await person.answer("y")
        assert (await ship.info()).position == 1
        assert (await ship.info()).num_ack_pending == 0


async def test_r_redrives_all_dead_letters_of_a_consumer(admin: Admin, declare: Declare) -> None:
    ship = await declare("ship")
    await _with_dead_letters(ship, 3)
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        assert "all 3 dead letters of ship of orders" in await person.ask("r")
        await person.answer("y")
        assert "Redriven: 3 messages." in person.notifications
        assert await ship.dead_letters() == []
        await person.press("r")
        await person.until(lambda: "has no dead letters" in person.notifications)


async def test_a_single_dead_letter_is_redriven_from_near(admin: Admin, declare: Declare) -> None:
    ship = await declare("ship")
    await _with_dead_letters(ship, 3)
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        await person.press("enter")
        await person.until(lambda: "no such street" in person.text)
        await person.select("dead_letters", "key='k1'")
        assert "(key k1)" in await person.ask("r")
        await person.answer("y")
        assert [letter.key for letter in await ship.dead_letters()] == ["k0", "k2"]
        assert person.line("Dead letters 2")
        assert "all 2 dead letters" in await person.ask("R")
        await person.answer("n")


async def test_an_action_that_fails_shows_its_error(admin: Admin, declare: Declare) -> None:
    await declare("ship")
    async with in_front_of(admin) as person:
        await person.select("consumers", "ship")
        await person.ask("p")
        await admin.delete_consumer("orders", "ship")
        await person.answer("y")
        assert "The consumer 'ship' of the stream" in person.notifications


# --- the store


async def test_while_the_store_is_unreachable_the_last_state_stays_on_screen(
    database: store.Database, admin: Admin, declare: Declare
) -> None:
    await declare("ship")
    async with in_front_of(admin) as person:
        await database.close()
        await person.poll()
        assert "Unreachable" in person.lines[1]
        assert person.line("orders", "ship")
        await person.select("consumers", "ship")
        await person.press("enter")
        assert isinstance(person.observer.screen, ConsumerScreen)
        await person.press("escape")
        await database.open()
        await declare("bill")
        await person.poll()
        assert "Unreachable" not in person.text
        assert person.line("orders", "bill")


async def test_a_server_whose_database_is_away_says_so_and_the_last_state_stays(
    admin: Admin, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare("ship")
    async with in_front_of(admin) as person:
        assert person.line("orders", "ship")
        # A server answers like that while its database is unavailable, see `test_the_last_snapshot_stays_while_the_database_is_away`.
        monkeypatch.setattr(admin, "snapshot", partial(_of_the_past, await admin.snapshot()))
        await person.poll()
        assert "Unreachable" in person.lines[1]
        assert "The database is away." in person.lines[1]
        assert person.line("orders", "ship")


async def _of_the_past(snapshot: LiveSnapshot) -> LiveSnapshot:
    return msgspec.structs.replace(snapshot, error="The database is away.")


async def test_an_update_takes_four_round_trips_in_the_mean_for_any_data_and_any_screen(
    database: store.Database, admin: Admin, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()  # an update a second, however long it takes
    now = [next(seconds)]
    monkeypatch.setattr(reading, "monotonic", lambda: now[0])
    monkeypatch.setattr(admin._live, "_clock", lambda: now[0])
    for number in range(12):
        await declare(f"consumer-{number}")
    await publish(database, *"abc")
    await database.fetch("update headrace_streams.orders set created_at = created_at - interval '1 hour'")
    async with in_front_of(admin) as person:

        async def cost_of(updates: int) -> float:
            before = database.statistics()["round_trips"]
            for _ in range(updates):
                now[0] = next(seconds)
                await person.observer.poll()
                await person.settle()
            return database.statistics()["round_trips"] - before

        assert await cost_of(10) <= 41  # with the names, once in ten
        await person.select("streams", "orders")
        await person.press("enter")
        await person.until(lambda: "newest first" in person.text)
        assert await cost_of(10) <= 41  # with the names, once in ten


async def test_it_does_the_same_over_a_server(dsn: str, admin: Admin, declare: Declare) -> None:
    ship = await declare("ship")
    await _with_dead_letters(ship)
    with serving(dsn) as url:
        async with Remote(Server(url)) as remote, in_front_of(remote) as person:
            assert person.line("orders", "ship")
            await person.select("consumers", "ship")
            await person.ask("p")
            await person.answer("y")
            assert (await ship.info()).paused_until is not None
            await person.press("enter")
            await person.until(lambda: "no such street" in person.text)
            await person.select("dead_letters", "key='k1'")
            await person.ask("r")
            await person.answer("y")
            assert [letter.key for letter in await ship.dead_letters()] == ["k0"]
