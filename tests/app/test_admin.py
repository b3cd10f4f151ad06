"""The admin: what an operator reads and changes, from Python and from the command line."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from headrace import App, ConfigurationError, InvalidFilter, InvalidInput, InvalidKey, store
from headrace.admin import Admin
from headrace.model import conditions
from headrace.model.errors import FilterTooSlow, InUse, UnknownConsumer, UnknownStream
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

SHIP = ("orders", "ship")

# A regular expression that runs for seconds on a text like FOREVER. Nearly every letter leads to a
# state of the matcher that it has not been in before, out of two to the power of thirty.
SLOW = {"field": "data.text", "op": "regex", "value": "[ab]*a[ab]{30}c"}
FOREVER = json.dumps({"text": random.Random(7).randbytes(5_000_000).translate(b"ab" * 128).decode()})


@pytest.fixture
def admin(database: store.Database) -> Admin:
    return Admin(database, judging=10)


@pytest_asyncio.fixture
async def ship(admin: Admin) -> Admin:
    """An admin with the stream `orders` and its consumer `ship`."""
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship", max_deliver=1))
    return admin


async def drain(admin: Admin) -> list[int]:
    """Receive and ack until no message is left."""
    found: list[int] = []
    while received := await admin.receive(*SHIP, limit=100):
        found += [one.seq for one in received]
        assert await admin.ack(*SHIP, [one.ack_id for one in received]) == []
    return found


async def dead(admin: Admin, database: store.Database, *keys: str) -> None:
    """Publish to these keys and make the messages dead letters."""
    await publish(database, *keys)
    while received := await admin.receive(*SHIP, limit=100):
        await admin.nack(*SHIP, [one.ack_id for one in received], error="boom")


async def test_an_app_has_an_admin_while_it_is_connected(dsn: str) -> None:
    app = App(dsn, streams=["orders"])
    with pytest.raises(ConfigurationError, match="not connected"):
        _ = app.admin
    async with app:
        assert [one.name for one in await app.admin.streams()] == ["orders"]


# --- streams


async def test_a_stream_is_created_with_its_settings(admin: Admin) -> None:
    await admin.create_stream(StreamSpec(name="orders", retain_up_to=60))
    assert (await admin.stream("orders")).retain_up_to == 60
    await admin.create_stream(StreamSpec(name="orders", retain_up_to=60))  # exactly the same settings
    with pytest.raises(InvalidInput, match=r"'orders' exists with other settings \(retain_up_to is 60 and not None\)"):
        await admin.create_stream("orders")
    with pytest.raises(InvalidInput, match="'Orders' can't be used"):
        await admin.create_stream("Orders")


async def test_a_stream_is_edited_setting_by_setting(admin: Admin) -> None:
    await admin.create_stream(StreamSpec(name="orders", retain_up_to=3600, max_storage=5_000_000))
    spec = await admin.edit_stream("orders", retain_up_to="2d", dedupe_window=5)
    assert (spec.retain_up_to, spec.max_storage, spec.dedupe_window) == (172_800, 5_000_000, 5)
    assert (await admin.edit_stream("orders", max_storage=None)).max_storage is None
    info = await admin.stream("orders")
    assert (info.retain_up_to, info.max_storage, info.dedupe_window) == (172_800, None, 5)


_INVALID_EDITS: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "There is no setting 'colour'. You can change retention, retain_up_to"),
    ({"name": "other"}, "name can't be changed"),
    ({"max_storage": "much"}, r"Expected `int \| null`, got `str` - at `\$.max_storage`"),
    ({"retain_up_to": "soon"}, "is not a duration"),
    ({"retain_up_to": 60, "retain_at_least": 90}, "must not be longer"),
    ({"one_message_per_key": True}, "can't be changed, its table is made for it"),
]


async def test_an_invalid_edit_is_refused(ship: Admin) -> None:
    for changes, text in _INVALID_EDITS:
        with pytest.raises((InvalidInput, ConfigurationError), match=text):
            await ship.edit_stream("orders", **changes)


async def test_a_stream_is_deleted(ship: Admin, database: store.Database) -> None:
    await publish(database, "a")
    assert await ship.receive(*SHIP)
    with pytest.raises(InUse, match="1 worker at work on 1 message"):
        await ship.delete_stream("orders")
    await ship.delete_stream("orders", force=True)
    assert await ship.streams() == []


async def test_missing_objects_are_reported(ship: Admin) -> None:
    consumer: list[Callable[..., Awaitable[Any]]] = [
        ship.consumer, ship.edit_consumer, ship.delete_consumer, ship.peek, ship.receive, ship.pause, ship.resume,
        ship.blocked_keys, ship.dead_letters, ship.redrive, ship.purge, ship.replay,
    ]  # fmt: skip
    for call in consumer:
        with pytest.raises(UnknownStream, match="nowhere"):
            await call("nowhere", "ship")
        with pytest.raises(UnknownConsumer, match="nobody"):
            await call("orders", "nobody")
    for other in (ship.ack, ship.nack, ship.seek):
        argument: Any = "end" if other == ship.seek else ["1-1"]
        with pytest.raises(UnknownStream, match="nowhere"):
            await other("nowhere", "ship", argument)
        with pytest.raises(UnknownConsumer, match="nobody"):
            await other("orders", "nobody", argument)
    for stream in (ship.stream, ship.messages, ship.edit_stream, ship.delete_stream, ship.consumers):
        with pytest.raises(UnknownStream, match="nowhere"):
            await stream("nowhere")
    with pytest.raises(UnknownStream, match="nowhere"):
        await ship.message("nowhere", "a")
    with pytest.raises(UnknownStream, match="nowhere"):
        await ship.republish("orders", "nowhere")


# --- messages


async def test_messages_are_viewed_by_filter_condition_and_place(ship: Admin, database: store.Database) -> None:
    await publish(database, "eu.a", "us.a", "eu.b", "us.b")

    async def seqs(**chosen: Any) -> list[int]:
        return [message.seq for message in await ship.messages("orders", **chosen)]

    assert await seqs() == [1, 2, 3, 4]
    assert await seqs(filter="eu.>", limit=1, newest=True) == [3]
    assert await seqs(filter=["eu.a", "us.*"], start_seq=2) == [2, 4]
    assert await seqs(where="data.n >= 2") == [3, 4]
    assert await seqs(where={"field": "data.n", "op": "=", "value": 1}) == [2]
    assert await seqs(where=conditions.field("n") == 0) == [1]


async def test_the_latest_message_of_a_key(ship: Admin, database: store.Database) -> None:
    await publish(database, *"aba")
    found = await ship.message("orders", "a")
    assert found is not None
    assert (found.seq, found.data) == (3, {"n": 2})
    assert await ship.message("orders", "c") is None
    with pytest.raises(InvalidKey):
        await ship.message("orders", "a.*")


_INVALID_SELECTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"limit": 0}, InvalidInput, "limit=0 must be from 1 to 10,000"),
    ({"limit": 10**6}, InvalidInput, "limit=1000000 must be"),
    ({"start_seq": 0}, InvalidInput, "start_seq=0 is not a seq"),
    ({"filter": "a..b"}, InvalidFilter, "empty token"),
    ({"filter": []}, InvalidFilter, "needs a filter"),
    ({"where": "data.n >"}, InvalidInput, "data.n >"),
    ({"where": {"field": "data.n", "op": "~~~", "value": 1}}, InvalidInput, "~~~"),
]


async def test_an_invalid_selection_is_refused(ship: Admin) -> None:
    for chosen, error, text in _INVALID_SELECTIONS:
        with pytest.raises(error, match=text):
            await ship.messages("orders", **chosen)


async def test_a_condition_that_takes_forever_is_cancelled_and_named(ship: Admin, database: store.Database) -> None:
    """Such a condition can be given in several places. None of the calls changes anything."""
    await dead(ship, database, "a")
    await database.fetch("update headrace_streams.orders set data = $1::text::json", FOREVER)
    await database.fetch("update headrace_internal.dead_letters set data = $1::text::json", FOREVER)
    hasty = Admin(database, judging=0.2)
    await ship.create_stream("copy")
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: hasty.messages("orders", where=SLOW),
        lambda: hasty.replay(*SHIP, where=SLOW),
        lambda: hasty.replay(*SHIP, where=SLOW, dry_run=True),
        lambda: hasty.republish("orders", "copy", where=SLOW),
        lambda: hasty.dead_letters(*SHIP, where=SLOW),
        lambda: hasty.redrive(*SHIP, where=SLOW),
        lambda: hasty.purge(*SHIP, where=SLOW),
    ]
    for call in calls:
        with pytest.raises(FilterTooSlow, match=r"The condition .*data\.text.* took longer than 0\.2 s") as raised:
            await call()
        assert raised.value.exit_code == 65
    assert len(await ship.dead_letters(*SHIP)) == 1


async def test_the_state_of_a_message_that_a_consumer_judges_forever_is_cancelled(database: store.Database) -> None:
    admin = Admin(database, judging=0.2)
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship", where=conditions.parse(SLOW)))
    await store.publish(database, "orders", "a", FOREVER)
    with pytest.raises(FilterTooSlow, match=r"took longer than 0\.2 s"):
        await admin.standing("orders", "a")


async def test_a_consumer_with_a_condition_that_takes_forever_can_be_viewed(database: store.Database) -> None:
    admin = Admin(database, counting=0.2)
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship", where=conditions.parse(SLOW)))
    await store.publish(database, "orders", "a", FOREVER)
    info = await admin.consumer(*SHIP)
    assert (info.lag, info.num_pending, info.num_pending_exact) == (1, 0, False)
    assert [one.lag for one in await admin.consumers()] == [1]
    with pytest.raises(FilterTooSlow, match="Reading the messages"):
        await Admin(database, judging=0.2).peek(*SHIP)
    with pytest.raises(FilterTooSlow, match=r"data\.text"):
        await Admin(database, judging=0.2).receive(*SHIP)


async def test_messages_are_republished_into_another_stream(ship: Admin, database: store.Database) -> None:
    await ship.create_stream("copy")
    await publish(database, *"abab")
    assert await ship.republish("orders", "copy", filter="b", dry_run=True) == 2
    assert await ship.messages("copy") == []
    assert await ship.republish("orders", "copy", filter="b") == 2
    assert [(one.key, one.data) for one in await ship.messages("copy")] == [("b", {"n": 1}), ("b", {"n": 3})]


# --- consumers


async def test_a_consumer_is_created_and_listed(ship: Admin) -> None:
    spec = ConsumerSpec(stream="orders", name="bill", filters=("a",), where=conditions.parse("data.n = 1"))
    await ship.create_consumer(spec)
    await ship.create_consumer(spec)
    assert [one.name for one in await ship.consumers()] == ["bill", "ship"]
    assert [one.name for one in await ship.consumers("orders")] == ["bill", "ship"]
    assert (await ship.consumer("orders", "bill")).settings["where"] == "data.n = 1"
    with pytest.raises(InvalidInput, match="'bill' of the stream 'orders' exists with other settings"):
        await ship.create_consumer(ConsumerSpec(stream="orders", name="bill"))
    assert (await ship.consumer("orders", "bill")).settings["filters"] == ["a"]
    with pytest.raises(UnknownStream):
        await ship.create_consumer(ConsumerSpec(stream="nowhere", name="bill"))


async def test_an_edit_of_a_consumer_changes_only_the_given_settings_at_once(
    ship: Admin, database: store.Database
) -> None:
    spec = await ship.edit_consumer(
        *SHIP, filter="a", where="data.n > 0", ack_wait="1m", backoff=["1s", "10s"], max_ack_pending=5, max_waiting=3
    )
    assert (spec.filters, spec.ack_wait, spec.max_ack_pending, spec.max_deliver) == (("a",), 60.0, 5, 1)
    assert spec.backoff == Backoff(delays=(1.0, 10.0))
    info = await ship.consumer(*SHIP)
    assert (info.settings["version"], info.settings["max_waiting"], info.settings["where"]) == (2, 3, "data.n > 0")
    assert await ship.edit_consumer(*SHIP) == spec
    assert await ship.edit_consumer(*SHIP, ack_wait=60) == spec
    assert (await ship.consumer(*SHIP)).settings["version"] == 2
    await publish(database, *"aab")
    assert await drain(ship) == [2]
    assert (await ship.edit_consumer(*SHIP, where=None)).where is None


_INVALID_EDITS_OF_CONSUMERS: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "There is no setting 'colour'. You can change filters, where, ordered"),
    ({"deliver_policy": "new"}, "deliver_policy can't be changed. You can change filters"),
    ({"start_seq": 5}, "start_seq can't be changed"),
    ({"max_ack_pending": "many"}, "Expected `int`, got `str`"),
    ({"max_ack_pending": 0}, "must be from 1 to 1,000,000"),
    ({"on_exhausted": "explode"}, "explode"),
    ({"filter": "a..b"}, "empty token"),
    ({"ack_wait": "soon"}, "is not a duration"),
    ({"backoff": []}, "is empty"),
    ({"where": "data.n >"}, "data.n >"),
]


async def test_an_invalid_edit_of_a_consumer_is_refused(ship: Admin) -> None:
    for changes, text in _INVALID_EDITS_OF_CONSUMERS:
        with pytest.raises((InvalidInput, ConfigurationError), match=text):
            await ship.edit_consumer(*SHIP, **changes)
        assert (await ship.consumer(*SHIP)).settings["version"] == 1


async def test_a_consumer_is_deleted(ship: Admin, database: store.Database) -> None:
    await publish(database, "a")
    assert await ship.receive(*SHIP)
    with pytest.raises(InUse):
        await ship.delete_consumer(*SHIP)
    await ship.delete_consumer(*SHIP, force=True)
    assert await ship.consumers() == []


async def test_a_consumer_is_paused_and_resumed(ship: Admin, database: store.Database) -> None:
    await publish(database, "a")
    await ship.pause(*SHIP)
    assert (await ship.consumer(*SHIP)).paused_until == datetime.max.replace(tzinfo=UTC)
    assert await ship.receive(*SHIP) == []
    later = datetime.now(UTC) + timedelta(hours=1)
    await ship.pause(*SHIP, later.replace(tzinfo=None))  # a time without a zone is in UTC
    assert (await ship.consumer(*SHIP)).paused_until == later
    await ship.resume(*SHIP)
    assert await drain(ship) == [1]
    with pytest.raises(InvalidInput, match="has passed"):
        await ship.pause(*SHIP, datetime(2020, 1, 1, tzinfo=UTC))


async def test_peeking_shows_messages_in_flight_and_next(ship: Admin, database: store.Database) -> None:
    await publish(database, *"abc")
    await ship.receive(*SHIP)
    assert [(one.seq, one.state) for one in await ship.peek(*SHIP, limit=2)] == [
        (1, "in_flight"), (2, "next"), (3, "next"),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="limit"):
        await ship.peek(*SHIP, limit=0)


# --- seek, replay


async def test_seek_takes_a_seq_a_time_the_start_and_the_end(ship: Admin, database: store.Database) -> None:
    await publish(database, *"abc")
    await database.fetch("select pg_sleep(0.001)")
    await publish(database, *"de")
    time = await database.fetchval("select created_at from headrace_streams.orders where seq = 4")
    assert await drain(ship) == [1, 2, 3, 4, 5]
    for to, position in (("start", 0), (2, 1), (time, 3), (time.replace(tzinfo=None), 3), ("end", 5)):
        assert await ship.seek(*SHIP, to) == position
        assert await drain(ship) == list(range(position + 1, 6))


async def test_a_seek_ends_the_leases_of_received_messages(ship: Admin, database: store.Database) -> None:
    await publish(database, *"ab")
    (received,) = await ship.receive(*SHIP)
    await ship.seek(*SHIP, "start")
    assert await ship.ack(*SHIP, [received.ack_id]) == [received.ack_id]
    assert await drain(ship) == [1, 2]


_NOWHERE: list[tuple[Any, str]] = [
    (4, "past the end of the stream 'orders', whose last one is 3: take one up to that, or \"end\""),
    (0, "to=0 is not a seq. A seq is a whole number, and the first is 1"),
    (-1, "to=-1 is not a seq"),
    (2**63, "is not a seq"),
    (datetime(2999, 1, 1, tzinfo=UTC), "lies in the future"),
    ("middle", "Can't seek to 'middle'. Pass a seq, a datetime, 'start' or 'end'"),
    (True, "Can't seek to True"),
    (1.5, "Can't seek to 1.5"),
]


async def test_a_seek_to_nowhere_is_refused(ship: Admin, database: store.Database) -> None:
    await publish(database, *"abc")
    for to, text in _NOWHERE:
        with pytest.raises(InvalidInput, match=text):
            await ship.seek(*SHIP, to)


async def test_messages_are_replayed_that_match(ship: Admin, database: store.Database) -> None:
    await publish(database, "eu.a", "us.a", "eu.b", "us.b")
    await drain(ship)
    assert await ship.replay(*SHIP, filter="eu.>", dry_run=True) == 2
    assert await drain(ship) == []
    assert await ship.replay(*SHIP, filter="eu.>") == 2
    assert await drain(ship) == [1, 3]
    assert await ship.replay(*SHIP, where="data.n > 1", start_seq=1, end_seq=3) == 1
    assert await drain(ship) == [3]
    assert await ship.replay(*SHIP, start_time=datetime(2020, 1, 1), end_time=datetime(2021, 1, 1)) == 0  # noqa: DTZ001


_EMPTY_RANGES: list[tuple[dict[str, Any], str]] = [
    ({"start_seq": 3, "end_seq": 2}, "start_seq=3 must not be greater than end_seq=2"),
    ({"end_seq": 0}, "end_seq=0 is not a seq"),
    (
        {"start_time": datetime(2021, 1, 1, tzinfo=UTC), "end_time": datetime(2020, 1, 1, tzinfo=UTC)},
        "must not be later than end_time",
    ),
]


async def test_a_criterion_that_does_not_exist_is_refused(ship: Admin, database: store.Database) -> None:
    """It would select more than was meant."""
    await publish(database, "a", "b")
    wrong: dict[str, Any] = {"filters": "a"}
    calls = (
        lambda: ship.replay("orders", "ship", **wrong),
        lambda: ship.republish("orders", "orders", **wrong),
        lambda: ship.search("orders", **wrong),
        lambda: ship.audit(**wrong),
        lambda: ship.purge("orders", "ship", **wrong),
    )
    for call in calls:
        with pytest.raises(InvalidInput, match="There is no criterion 'filters'"):
            await call()
    assert len(await ship.messages("orders")) == 2


async def test_a_range_that_holds_nothing_is_refused(ship: Admin) -> None:
    for chosen, text in _EMPTY_RANGES:
        with pytest.raises(InvalidInput, match=text):
            await ship.replay(*SHIP, **chosen)
        with pytest.raises(InvalidInput, match=text):
            await ship.republish("orders", "orders", **chosen)


# --- dead letters, blocked keys


async def test_dead_letters_are_listed_shown_redriven_and_purged(ship: Admin, database: store.Database) -> None:
    await dead(ship, database, "eu.a", "us.a", "eu.b", "us.b")
    assert [one.seq for one in await ship.dead_letters(*SHIP, filter="eu.>")] == [1, 3]
    assert [one.seq for one in await ship.dead_letters(*SHIP, where="data.n > 0", above=2, limit=1)] == [3]
    shown = await ship.dead_letter(*SHIP, 2)
    assert (shown.key, shown.data, shown.error) == ("us.a", {"n": 1}, "boom")
    with pytest.raises(InvalidInput, match="'ship' of the stream 'orders' has no dead letter 5"):
        await ship.dead_letter(*SHIP, 5)
    assert await ship.redrive(*SHIP, key="us.a", dry_run=True) == 1
    assert await ship.redrive(*SHIP, key="us.a") == 1
    assert await drain(ship) == [2]
    assert await ship.purge(*SHIP, where="data.n = 0") == 1
    assert await ship.purge(*SHIP, seqs=[3], dry_run=True) == 1
    assert await ship.redrive(*SHIP) == 2
    assert await drain(ship) == [3, 4]
    for verb in (ship.redrive, ship.purge):
        with pytest.raises(InvalidInput, match="seqs=0 is not a seq"):
            await verb(*SHIP, seqs=[0])
        with pytest.raises(InvalidKey):
            await verb(*SHIP, key="a.>")


async def test_blocked_keys_go_on_when_they_are_redriven(ship: Admin, database: store.Database) -> None:
    await ship.edit_consumer(*SHIP, on_exhausted="block")
    await dead(ship, database, *"ab")
    await publish(database, *"ab")
    assert await drain(ship) == []
    assert [(one.key, one.waiting, one.error) for one in await ship.blocked_keys(*SHIP)] == [
        ("a", 1, "boom"), ("b", 1, "boom"),
    ]  # fmt: skip
    assert await ship.redrive(*SHIP, key="a") == 1
    assert await drain(ship) == [1, 3]


# --- receive, ack, nack


async def test_a_received_message_has_everything_that_is_needed_to_handle_it(
    ship: Admin, database: store.Database
) -> None:
    await ship.edit_consumer(*SHIP, max_deliver=3)
    await store.publish(database, "orders", "a", '{"x": 1}', '{"h": 2}')
    (first,) = await ship.receive(*SHIP)
    assert (first.seq, first.key, first.data, first.headers, first.attempt) == (1, "a", {"x": 1}, {"h": 2}, 1)
    assert await ship.nack(*SHIP, [first.ack_id]) == []
    (second,) = await ship.receive(*SHIP)
    assert (second.attempt, second.ack_id != first.ack_id) == (2, True)
    assert await ship.ack(*SHIP, [first.ack_id, second.ack_id]) == [first.ack_id]
    assert await ship.receive(*SHIP) == []


async def test_one_message_of_each_key_is_received(ship: Admin, database: store.Database) -> None:
    await publish(database, *"aabbabc")
    received = await ship.receive(*SHIP, limit=100)
    assert [one.seq for one in received] == [1, 3, 7]
    assert await ship.receive(*SHIP, limit=100) == []
    await ship.ack(*SHIP, [received[0].ack_id])
    (following,) = await ship.receive(*SHIP, limit=100)
    assert (following.seq, following.attempt) == (2, 1)
    info = await ship.consumer(*SHIP)
    assert (info.num_ack_pending, info.num_pending) == (3, 3)


async def test_many_keys_are_received_though_one_is_hot(ship: Admin, database: store.Database) -> None:
    await publish(database, *["hot"] * 30, *"abc")
    assert [one.key for one in await ship.receive(*SHIP, limit=4)] == ["hot", "a", "b", "c"]


async def test_all_messages_of_an_unordered_consumer_are_received(ship: Admin, database: store.Database) -> None:
    await ship.edit_consumer(*SHIP, ordered=False)
    await publish(database, *"aaa")
    assert [one.seq for one in await ship.receive(*SHIP, limit=2)] == [1, 2]


async def test_receivers_at_once_never_have_two_messages_of_a_key(ship: Admin, database: store.Database) -> None:
    keys = [*"abcd"] * 15
    await publish(database, *keys)
    held: set[str] = set()
    order: dict[str, list[int]] = {}

    async def work() -> None:
        while sum(map(len, order.values())) < len(keys):
            received = await ship.receive(*SHIP, limit=3)
            for one in received:
                assert one.key not in held
                held.add(one.key)
                order.setdefault(one.key, []).append(one.seq)
            await asyncio.sleep(0)
            held.difference_update(one.key for one in received)
            assert await ship.ack(*SHIP, [one.ack_id for one in received]) == []

    async with asyncio.timeout(60):
        await asyncio.gather(*(work() for _ in range(4)))
    assert all(seqs == sorted(set(seqs)) for seqs in order.values())


async def test_receive_finds_the_messages_of_a_selective_filter_however_far_away(
    ship: Admin, database: store.Database
) -> None:
    await ship.edit_consumer(*SHIP, filter="rare")
    await publish(database, *["common"] * 9_000, "rare")
    assert [one.seq for one in await ship.receive(*SHIP)] == [9_001]


async def test_receive_waits_for_a_message(ship: Admin, database: store.Database) -> None:
    assert await ship.receive(*SHIP, wait=0.01) == []
    waiting = asyncio.create_task(ship.receive(*SHIP, wait=30))
    await publish(database, "a")
    async with asyncio.timeout(10):
        assert [one.seq for one in await waiting] == [1]


async def test_a_nack_may_put_a_message_off(ship: Admin, database: store.Database) -> None:
    await ship.edit_consumer(*SHIP, max_deliver=3)
    await publish(database, "a")
    (received,) = await ship.receive(*SHIP)
    assert await ship.nack(*SHIP, [received.ack_id], delay="1h") == []
    assert await ship.receive(*SHIP) == []
    (parked,) = await ship.peek(*SHIP)
    assert parked.state == "parked"
    assert parked.until is not None
    assert parked.until - datetime.now(UTC) > timedelta(minutes=59)


_INVALID_ACK_IDS: list[Any] = ["", "1", "A" * 48, "\x00" * 48, "é" * 48, None, 5]


async def test_an_invalid_ack_id_is_refused(ship: Admin) -> None:
    for ack_id in _INVALID_ACK_IDS:
        for settle in (ship.ack, ship.nack):
            with pytest.raises(InvalidInput, match="is not an ack id"):
                await settle(*SHIP, [ack_id])


async def test_an_ack_id_of_another_consumer_changes_nothing(ship: Admin, database: store.Database) -> None:
    await ship.create_consumer(ConsumerSpec(stream="orders", name="bill"))
    await publish(database, "a")
    (received,) = await ship.receive(*SHIP)
    assert await ship.ack("orders", "bill", [received.ack_id]) == [received.ack_id]
    assert await ship.ack(*SHIP, [received.ack_id, received.ack_id]) == []


_INVALID_RECEIVES: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit=0"),
    ({"wait": -1}, "wait=-1"),
    ({"wait": 1e9}, "wait="),
]


async def test_an_invalid_receive_is_refused(ship: Admin) -> None:
    for chosen, text in _INVALID_RECEIVES:
        with pytest.raises(InvalidInput, match=text):
            await ship.receive(*SHIP, **chosen)
