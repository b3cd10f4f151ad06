"""The live state: one snapshot for all requests, of which each gets its own part, also while the database is unavailable."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import anyio
import pytest

from headrace import store
from headrace.admin.live import reading
from headrace.admin.live.reading import Reading
from headrace.model.errors import StoreUnavailable
from headrace.model.records import WorkerFacts
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.diagnosis import Cause
from headrace.server.live.attention import ORDER
from headrace.server.live.refreshing import LiveState
from tests.server.calling import Api
from tests.support.readers import Clock
from tests.support.readers import Reader as Reader_

pytestmark = pytest.mark.asyncio


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(api: Api) -> Hands:
    """The clock of the server's live state."""
    hands = Hands()
    api.server.live._clock = hands
    return hands


Renew = Callable[[], None]


@pytest.fixture
def renew(api: Api) -> Renew:
    """Make the next request take another snapshot."""

    def renew() -> None:
        api.server.live._due = float("-inf")
        api.server.live.changed()

    return renew


@pytest.fixture
def queries(api: Api, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that read the figures of snapshots. The server sends others meanwhile, such as those of its sampler,
    which reads some of the same."""
    sent: list[str] = []
    reads, run = Reading.read, store.Database._run
    within_a_reading = ContextVar("within_a_reading", default=False)

    async def marked(self: Reading, database: store.Database) -> None:
        token = within_a_reading.set(True)
        try:
            await reads(self, database)
        finally:
            within_a_reading.reset(token)

    async def counted(self: store.Database, method: str, query: str, args: Any) -> Any:
        if within_a_reading.get():
            sent.append(query)
        return await run(self, method, query, args)

    monkeypatch.setattr(Reading, "read", marked)
    monkeypatch.setattr(store.Database, "_run", counted)
    return sent


async def rows(api: Api, kind: str, **query: Any) -> list[dict[str, Any]]:
    return list((await api.get(f"/live/{kind}", **query))["data"])


async def test_a_consumer_shows_what_is_in_flight_parked_blocked_and_dead(api: Api, renew: Renew) -> None:
    await api.stream()
    await api.consumer(on_exhausted="block", max_deliver=1)
    await api.publish(("a", 1), ("a", 2), ("b", 3), ("c", 4), ("d", 5))
    given = await api.receive(batch_size=3)
    ids = {one["message"]["key"]: one["ack_id"] for one in given}
    await api.post("/streams/orders/consumers/ship/nack", {"ack_ids": [ids["a"]], "error": "no use"})
    (row,) = await rows(api, "consumers")
    assert (row["stream"], row["name"], row["kind"], row["state"]) == ("orders", "ship", "pull", "blocked")
    assert (row["in_flight"], row["dead_letters"]) == (len(given) - 1, 1)
    info = await api.server.app.admin.consumer("orders", "ship")
    assert (row["parked"], row["blocked"], row["lag"]) == (info.parked, info.blocked, info.lag)
    assert row["blocked"]
    assert row["lag_seconds"] >= 0
    await api.post("/streams/orders/consumers/ship/dead_letters/purge")
    renew()
    (row,) = await rows(api, "consumers")
    assert (row["blocked"], row["dead_letters"], row["state"]) == (0, 0, "")


async def test_a_stream_shows_its_size_its_rate_and_its_consumers(api: Api, renew: Renew) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1))
    await rows(api, "streams")
    await api.publish(("b", 2), ("c", 3))
    renew()
    (row,) = await rows(api, "streams")
    assert (row["name"], row["messages"], row["last_seq"], row["consumers"], row["lag"]) == ("orders", 3, 3, 1, 3)
    assert row["publish_rate"] > 0
    assert row["size"] > 0
    found = (await api.get("/live/streams/orders"))["data"]
    assert (found["info"]["retention"], found["rates"]) == ("limits", row["rates"])


async def test_numbers_of_rolled_back_transactions_are_no_lag_in_the_end(api: Api, renew: Renew) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("a", 1))
    (message,) = await api.receive()
    await api.post("/streams/orders/consumers/ship/ack", {"ack_ids": [message["ack_id"]]})

    async def publish_and_fail() -> None:
        async with api.server.app.database.transaction() as connection:
            await store.publish(connection, "orders", "b", "2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await publish_and_fail()
    await rows(api, "consumers")
    renew()
    (row,) = await rows(api, "consumers")
    assert (row["lag"], row["lag_seconds"]) == (0, None)


async def test_all_who_ask_share_a_snapshot(api: Api, hands: Hands, queries: list[str]) -> None:
    await api.stream()
    await api.consumer()
    await api.get("/live")
    queries.clear()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            for kind in ("", "/streams", "/consumers", "/processes", "/sources"):
                group.start_soon(api.get, f"/live{kind}")
    assert not queries
    hands.now += 5
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(api.get, "/live/consumers")
    assert queries
    assert len(queries) == len(set(queries))


async def test_nothing_is_read_while_nobody_asks(api: Api, hands: Hands, queries: list[str]) -> None:
    await api.get("/live")
    queries.clear()
    hands.now += 3600
    await anyio.lowlevel.checkpoint()
    assert not queries


async def test_an_etag_spares_the_answer_until_the_next_snapshot(api: Api, hands: Hands) -> None:
    await api.stream()
    first = await api.client.get("/v1/live/streams")
    headers = {"if-none-match": first.headers["etag"]}
    again = await api.client.get("/v1/live/streams", headers=headers)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert (await api.client.get("/v1/live/streams?q=x", headers=headers)).status_code == 200
    hands.now += 60
    assert (await api.client.get("/v1/live/streams", headers=headers)).status_code == 200


async def test_the_last_snapshot_stays_while_the_database_is_away(
    api: Api, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.stream()
    before = await api.client.get("/v1/live")
    assert before.json()["data"]["database"]["reachable"] is True

    async def away(_: Reading, __: store.Database) -> None:
        raise StoreUnavailable("The database is away.")

    with monkeypatch.context() as patch:
        patch.setattr(Reading, "read", away)
        hands.now += 60
        during = await api.client.get("/v1/live", headers={"if-none-match": before.headers["etag"]})
        assert during.status_code == 200
        data = during.json()["data"]
        assert (data["database"]["reachable"], data["database"]["error"]) == (
            False,
            "The database is not available now. Try again in a moment.",
        )
        assert (await api.get("/live/snapshot"))["data"]["error"] == data["database"]["error"]
        assert data["totals"]["streams"] == 1
        assert [one["name"] for one in await rows(api, "streams")] == ["orders"]
    hands.now += 60
    assert (await api.get("/live"))["data"]["database"]["reachable"] is True


async def test_without_any_snapshot_an_outage_is_an_error(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "read", _away)
    with pytest.raises(StoreUnavailable, match="not available now"):
        await LiveState(engine).snapshot()


async def test_a_page_that_is_opened_gets_the_snapshot_of_the_last_minute_at_once(
    api: Api, hands: Hands, queries: list[str]
) -> None:
    await api.stream()
    at = (await api.get("/live"))["data"]["at"]
    own_page = {"x-headrace-console": "1", "sec-fetch-site": "same-origin"}
    answer = await api.client.post("/v1/session", json={"token": "none"}, headers=own_page)
    assert answer.status_code == 422, answer.text  # no token exists. To sign in changes nothing that screens show
    hands.now += 59.0
    queries.clear()
    found = await api.client.get("/v1/live", headers={"x-headrace-console": "first"})
    assert (found.json()["data"]["at"], queries) == (at, [])
    assert (await api.get("/live"))["data"]["at"] > at  # others get what is so now


@pytest.mark.parametrize("reason", ["old", "changed", "away"])
async def test_a_page_that_is_opened_gets_no_snapshot_that_says_what_is_known_to_be_wrong(
    api: Api, hands: Hands, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    first = {"x-headrace-console": "first"}
    await api.stream()
    await api.get("/live")
    if reason == "away":
        monkeypatch.setattr(Reading, "read", _away)
        hands.now += 2.0
        await api.get("/live")
    elif reason == "changed":
        await api.stream("bills")
        hands.now += 2.0
    else:
        await api.server.app.admin.create_stream("bills")
        hands.now += 61.0
    data = (await api.client.get("/v1/live", headers=first)).json()["data"]
    assert data["database"]["reachable"] == (reason != "away")
    assert data["totals"]["streams"] == (1 if reason == "away" else 2)


async def _away(_: Reading, __: store.Database) -> None:
    raise StoreUnavailable("The database is away.")


async def test_a_caller_sees_its_own_streams_only(api: Api) -> None:
    for name in ("orders", "bills"):
        await api.stream(name)
        await api.consumer("ship", name)
        await api.publish(("a", 1), stream=name)
    root = (await api.post("/tokens", {"name": "root", "scopes": ["admin"]}, 201))["token"]
    api.client.headers["authorization"] = f"Bearer {root}"
    some = (await api.post("/tokens", {"name": "some", "scopes": ["consume:orders"]}, 201))["token"]
    none = (await api.post("/tokens", {"name": "none", "scopes": ["publish:orders"]}, 201))["token"]
    api.client.headers["authorization"] = f"Bearer {some}"
    assert [one["name"] for one in await rows(api, "streams")] == ["orders"]
    assert [one["stream"] for one in await rows(api, "consumers")] == ["orders"]
    data = (await api.get("/live"))["data"]
    assert (data["totals"]["streams"], data["totals"]["lag"]) == (1, 1)
    assert {one["stream"] for one in data["attention"]} <= {"orders"}
    snapshot = (await api.get("/live/snapshot"))["data"]
    assert [one["name"] for one in snapshot["streams"]] == ["orders"]
    assert [one["stream"] for one in snapshot["consumers"]] == ["orders"]
    assert (snapshot["processes"], snapshot["sources"]) == ([], [])
    await api.refused("GET", "/live/streams/bills", status=403)
    await api.refused("GET", "/live/processes", status=403)
    api.client.headers["authorization"] = f"Bearer {none}"
    await api.refused("GET", "/live", status=403)
    await api.refused("GET", "/live/snapshot", status=403)


async def test_the_snapshot_has_what_the_lists_have_and_the_last_lags(api: Api, hands: Hands) -> None:
    for name in ("b", "a"):
        await api.stream(name)
        await api.consumer("ship", name)
        await api.publish(("k", 1), stream=name)
    for _ in range(2):
        hands.now += 100.0
        listed = await rows(api, "consumers", sort="name")
        snapshot = (await api.get("/live/snapshot"))["data"]
        assert [{**one, "lags": []} for one in snapshot["consumers"]] == listed
        assert snapshot["streams"] == await rows(api, "streams")
    assert [one["lags"] for one in snapshot["consumers"]] == [[1, 1], [1, 1]]
    assert (snapshot["processes"], snapshot["sources"]) == (await rows(api, "processes"), await rows(api, "sources"))
    assert (await rows(api, "consumers"))[0]["lags"] == []


async def test_a_pause_by_another_process_and_a_full_stream_are_seen_at_the_next_look(api: Api, hands: Hands) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(("k", 1))
    assert [one["state"] for one in await rows(api, "consumers")] == ["unattended"]
    database = api.server.app.database
    await store.pause(database, await store.consumer_id(database, "orders", "ship"), datetime(2100, 1, 1, tzinfo=UTC))
    await database.fetch("update headrace_internal.streams set full_until = clock_timestamp() + interval '1 hour'")
    hands.now += 100.0
    (consumer,) = await rows(api, "consumers")
    assert (consumer["state"], consumer["paused_until"]) == ("paused", "2100-01-01T00:00:00Z")
    assert [one["state"] for one in await rows(api, "streams")] == ["full"]


async def test_lists_are_sorted_filtered_and_cut(api: Api) -> None:
    for number, name in enumerate(("a", "b", "c")):
        await api.stream(name)
        await api.consumer("ship", name)
        await api.publish(*[("k", n) for n in range(number)], stream=name)
    found = await api.get("/live/consumers", limit=2)
    assert ([one["stream"] for one in found["data"]], found["total"]) == (["c", "b"], 3)
    assert [one["stream"] for one in await rows(api, "consumers", sort="name", offset=1)] == ["b", "c"]
    assert [one["stream"] for one in await rows(api, "consumers", state="ok")] == ["a"]
    assert [one["name"] for one in await rows(api, "streams", sort="messages", limit=1)] == ["c"]
    assert await rows(api, "streams", q="nothing") == []


async def test_what_needs_somebody_is_listed_the_worst_first(api: Api, renew: Renew) -> None:
    await api.stream()
    await api.consumer("idle")
    await api.consumer("paused")
    await api.publish(("a", 1))
    await api.post("/streams/orders/consumers/paused/pause")
    found = (await api.get("/live"))["data"]["attention"]
    assert [(one["name"], one["state"]) for one in found] == [("idle", "unattended"), ("paused", "paused")]
    assert found[1]["mend"] == "headrace consumer resume orders paused"
    await api.post("/streams/orders/consumers/paused/resume")
    renew()
    found = (await api.get("/live"))["data"]["attention"]
    assert [one["state"] for one in found] == ["unattended", "unattended"]


async def test_a_process_whose_event_loop_is_blocked_needs_somebody(database: store.Database, api: Api) -> None:
    blocked = "the handler of ship at service.py:14 in ship, with message 1 of orders"
    started_at = datetime.now(UTC)
    facts = WorkerFacts(host="here", pid=7, kind="run", version="1", started_at=started_at, blocked=blocked)
    await store.record_heartbeat(database, uuid4(), facts)
    found = [one for one in (await api.get("/live"))["data"]["attention"] if one["kind"] == "process"]
    assert [(one["name"], one["state"]) for one in found] == [("here:7", "event_loop")]
    assert blocked in found[0]["reason"]
    assert blocked in [one["blocked"] for one in await rows(api, "processes")]


async def test_dead_letters_and_filters_that_match_nothing_need_somebody(
    database: store.Database, api: Api, renew: Renew
) -> None:
    await api.stream()
    for name, settings in {
        "all": {}, "typo": {"filters": ["order.>"]}, "nowhere": {"where": "data.totl > 1"}, "some": {"filters": ["orders.>"]}, "none": {},
    }.items():  # fmt: skip
        await api.consumer(name, **settings)
    await api.publish(("orders.us", {"total": 1}), ("orders.de", {"total": 2}))
    for name in ("all", "typo", "nowhere", "some", "none"):
        number = await store.consumer_id(database, "orders", name)
        spec = ConsumerSpec(stream="orders", name=name)
        reader = Reader_(database, spec, number, Clock())
        batch = await reader.lease()
        if name == "none":
            await reader.reject(batch)
        elif batch.lease_id is not None:
            await reader.ack_all(batch)
    states: dict[str, tuple[str, str]] = {}
    for _ in range(3):  # the filters of one consumer are looked at with each snapshot
        renew()
        states |= {one["name"]: (one["state"], one["reason"]) for one in (await api.get("/live"))["data"]["attention"]}
    nothing = "None of the last 2 messages of its stream matches its filters."
    expected = {
        "none": ("dead_letters", "It has 2 dead letters."),
        "typo": ("filters", nothing),
        "nowhere": ("filters", nothing),
    }
    assert states == expected
    for name in ("typo", "nowhere", "some"):
        answer = await api.get(f"/streams/orders/consumers/{name}/why")
        assert answer["text"] == ("" if name == "some" else nothing)


async def test_the_guide_says_what_to_do_about_each_state_that_needs_somebody() -> None:
    guide = (Path(__file__).parents[2] / "docs/how-to/monitor.md").read_text()
    table = guide[guide.index("| alarm |") :].split("\n\n")[0].splitlines()[2:]
    shown = [state for line in table for state in re.findall(r"`(\w+)`", line.split("|")[2])]
    assert sorted(shown) == sorted(ORDER)
    causes = guide[guide.index("| cause |") :].split("\n\n")[0].splitlines()[2:]
    assert {line.split("`")[1] for line in causes} == {cause for cause in get_args(Cause) if cause}


async def test_a_consumer_is_read_with_its_settings(api: Api) -> None:
    await api.stream()
    made = await api.consumer()
    by_id = await api.get(f"/live/streams/orders/consumers/{made['id']}")
    assert (by_id["data"]["name"], by_id["data"]["info"]["settings"]["max_deliver"]) == ("ship", made["max_deliver"])
    assert (by_id["data"]["processes"], by_id["data"]["governor"]) == ([], [])
    await api.refused("GET", "/live/streams/orders/consumers/nothing", status=404)
    await api.refused("GET", "/live/streams/nothing", status=404)


async def test_a_reading_takes_few_queries_however_many_consumers_there_are(
    api: Api, queries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_COUNTED", 4)
    monkeypatch.setattr(reading, "RECOUNTED", 2)
    monkeypatch.setattr(reading, "MAX_SIZED", 2)
    monkeypatch.setattr(reading, "SIZES_EVERY", 0.0)
    admin, database = api.server.app.admin, api.server.app.database
    for number in range(5):
        await admin.create_stream(f"s{number}")
        for name in ("x", "y"):
            await admin.create_consumer(ConsumerSpec(stream=f"s{number}", name=name))
        await store.publish(database, f"s{number}", "k", "1")
    one = Reading()
    for _ in range(10):
        queries.clear()
        await one.read(database)
        assert 0 < len(queries) <= 6
    assert all(figures.counts is not None for figures in one.consumers.values())
    assert all(figures.size is not None for figures in one.streams.values())
    assert all(figures.oldest is not None and figures.oldest[1] is not None for figures in one.consumers.values())


async def test_the_figures_are_those_of_the_consumer(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(*[(key, 1) for key in "aabbcc"])
    await store.lease(api.server.app.database, 1, uuid4(), 4)
    info = await api.server.app.admin.consumer("orders", "ship")
    found = await store.live_figures(api.server.app.database)
    (number,) = found.positions
    assert found.positions[number] == info.position
    assert found.leases[number][:2] == (info.num_ack_pending, info.owners)
    counts = (await store.live_counts(api.server.app.database, [number]))[number]
    assert (counts.parked, counts.blocked, counts.replaying, counts.dead_letters, counts.missed) == (
        info.parked, info.blocked, info.replaying, info.dead_letters, info.missed,
    )  # fmt: skip
