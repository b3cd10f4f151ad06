"""Looking closely over HTTP: journeys, searches, a key's history, what a seek would do, and exports."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import ConfigurationError
from headrace.model.records import StoredMessage
from headrace.model.watching.journeys import Journey, Trace
from headrace.server.options import Options
from headrace.server.wire.inspection import MessageJourney
from tests.conftest import Connect
from tests.server.calling import Api
from tests.support.serving import serving
from tests.support.waiting import until_blocked

pytestmark = pytest.mark.asyncio

_CONSUMER = "/streams/orders/consumers/ship"


_WAITS = "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')"


async def _dead(api: Api, messages: int = 5, **settings: Any) -> None:
    await api.stream()
    await api.consumer(max_deliver=1, **settings)
    await api.publish(*((f"k.{n}", {"n": n}) for n in range(messages)))
    ids = [one["ack_id"] for one in await api.receive()]
    await api.post(f"{_CONSUMER}/nack", {"ack_ids": ids, "error": "no"})


async def test_the_journey_of_a_message_has_its_state_in_each_consumer(api: Api) -> None:
    stream = await api.stream()
    await api.consumer("ship")
    await api.consumer("audit", filter="b.>")
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = f'{{"key": "a", "data": 1.50, "headers": {{"traceparent": "{parent}"}}}}'
    await api.client.post("/v1/streams/orders/messages", content=body)
    await api.receive("ship")
    answer = await api.answer("GET", "/streams/orders/journeys/1")
    assert '"data":1.50' in answer.text, "as it was published"
    found = answer.json()["data"]
    assert (found["seq"], found["gone"], found["erased"], found["next"]) == (1, None, None, None)
    assert found["message"]["stream_id"] == stream["id"]
    assert found["message"]["trace"] == {
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "url": None,
    }  # fmt: skip
    audit, ship = found["consumers"]
    assert (audit["consumer"], audit["state"]) == ("audit", "filtered")
    assert (ship["state"], ship["attempt"], ship["owner"]) == ("in_flight", 1, None)
    assert ship["lease_until"] is not None
    one = (await api.get("/streams/orders/journeys/1", limit=1))["data"]
    assert (len(one["consumers"]), one["next"]) == (1, "audit")


async def test_a_message_of_which_nothing_is_left_is_unknown(api: Api) -> None:
    await api.stream()
    assert (await api.refused("GET", "/streams/orders/journeys/1", status=404))["code"] == "unknown_message"
    assert (await api.refused("GET", "/streams/nothing/journeys/1", status=404))["code"] == "unknown_stream"
    await api.publish(("a", 1))
    await api.post("/streams/orders/erasures", {"seqs": [1]})
    found = (await api.get("/streams/orders/journeys/1"))["data"]
    assert (found["message"], found["gone"], found["consumers"]) == (None, "erased", [])


async def test_a_search_goes_on_from_its_position(api: Api) -> None:
    await api.stream()
    await api.publish(*((f"k.{n % 2}", {"n": n}) for n in range(10)))
    first = await api.get("/streams/orders/search", filter="k.1", limit=3)
    assert [message["seq"] for message in first["data"]] == [10, 8, 6]
    assert (first["examined"], first["position"], first["more"], first["remaining"]) == (5, 6, True, 5)
    second = await api.get("/streams/orders/search", filter="k.1", limit=3, before=first["position"])
    assert [message["seq"] for message in second["data"]] == [4, 2]
    assert (second["more"], second["remaining"]) == (False, 0)
    up = await api.get("/streams/orders/search", where="data.n > 7", after=0)
    assert [message["seq"] for message in up["data"]] == [9, 10]
    assert [message["seq"] for message in (await api.get("/streams/orders/search", key="k.0", limit=1))["data"]] == [9]
    for query in (
        {"after": 1, "before": 3},
        {"key": "a", "filter": "a"},
        {"where": "nope("},
        {"since": "2030-01-02T00:00:00Z", "until": "2030-01-01T00:00:00Z"},
    ):
        await api.refused("GET", "/streams/orders/search", status=422, **query)


async def test_a_search_whose_client_disconnects_ends_in_the_database(
    dsn: str, database: store.Database, connect: Connect
) -> None:
    holder: Any = await connect()
    with serving(dsn) as url:
        await store.create_stream(database, "orders")
        await store.publish(database, "orders", "a", "1")
        async with holder.transaction():
            await holder.execute("lock table headrace_streams.orders in access exclusive mode")
            host, port = url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /v1/streams/orders/search HTTP/1.1\r\nHost: localhost\r\n\r\n")
            pid = await until_blocked(database, holder, statement="search_step")  # the server's upkeep may wait, too
            writer.close()
            await writer.wait_closed()
            async with asyncio.timeout(10):
                while await database.fetchval(_WAITS, pid):
                    pass


async def test_the_history_of_a_key_is_listed_by_the_exact_key(api: Api) -> None:
    await api.stream()
    await api.publish(("a", 1), ("a.b", 2), ("a", 3))
    listed = await api.get("/streams/orders/messages", key="a", sort="seq_desc")
    assert [message["seq"] for message in listed["data"]] == [3, 1]
    assert (await api.refused("GET", "/streams/orders/messages", key="a.>", status=422))["code"] == "invalid_key"


async def test_a_seek_that_is_only_tried_changes_nothing(api: Api) -> None:
    await api.stream()
    await api.consumer()
    await api.publish(*((f"k.{n}", n) for n in range(4)))
    await api.receive(batch_size=3)
    preview = await api.post(f"{_CONSUMER}/seek", {"to": "start", "dry_run": True})
    assert preview["data"] == {
        "from": 3, "to": 0, "again": 3, "again_exact": True, "skipped": 0, "skipped_exact": True, "in_flight": 3,
    }  # fmt: skip
    assert (await api.post(f"{_CONSUMER}/seek", {"to": "end", "dry_run": True}))["data"]["skipped"] == 1
    assert (await api.get(_CONSUMER))["info"]["position"] == 3
    await api.refused("POST", f"{_CONSUMER}/seek", {"to": 99, "dry_run": True}, status=422)


async def test_dead_letters_are_selected_by_their_seqs(api: Api) -> None:
    await _dead(api)
    listed = await api.client.get(f"/v1{_CONSUMER}/dead_letters?seqs=2&seqs=4&seqs=77")
    assert [letter["seq"] for letter in listed.json()["data"]] == [2, 4]


async def test_an_export_has_all_dead_letters_that_match_as_lines(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.routes.inspecting.exports.EXPORT_PAGE", 2)
    monkeypatch.setattr("headrace.server.routes.dead_letters.EXPORT_PAGE", 2)
    await _dead(api)
    answer = await api.answer("GET", f"{_CONSUMER}/dead_letters/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    letters = [json.loads(line) for line in answer.text.splitlines()]
    assert [letter["seq"] for letter in letters] == [1, 2, 3, 4, 5]
    assert letters[0] == (await api.get(f"{_CONSUMER}/dead_letters"))["data"][0]
    some = await api.answer("GET", f"{_CONSUMER}/dead_letters/export", where="data.n > 2")
    assert len(some.text.splitlines()) == 2
    assert (await api.answer("GET", f"{_CONSUMER}/dead_letters/export", key="none")).text == ""
    await api.refused("GET", f"{_CONSUMER}/dead_letters/export", where="nope(", status=422)


async def test_an_export_that_fails_on_the_way_says_so_in_its_last_line(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.server.routes.dead_letters.EXPORT_PAGE", 2)
    await _dead(api)
    read, calls = store.dead_letters, 0

    async def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            from headrace.model.errors import StoreUnavailable

            raise StoreUnavailable("gone")
        return await read(*args, **options)

    monkeypatch.setattr(store, "dead_letters", failing)
    answer = await api.answer("GET", f"{_CONSUMER}/dead_letters/export")
    assert json.loads(answer.text.splitlines()[-1])["code"] == "store_unavailable"
    assert len(answer.text.splitlines()) == 3


async def test_a_trace_is_linked_where_the_tracing_system_shows_it() -> None:
    journey = Journey(
        seq=1, message=StoredMessage(seq=1, key="a", data=1, headers={}, created_at=datetime.now(UTC)), trace=Trace(trace_id="4b" * 16, span_id="00" * 8), gone=None, erased=None,
        consumers=[], next=None,
    )  # fmt: skip
    found = MessageJourney.of(journey, "s", "https://traces.example/trace/{trace_id}?x=1").message
    assert found is not None
    assert found.trace is not None
    assert found.trace.url == f"https://traces.example/trace/{'4b' * 16}?x=1"


@pytest.mark.parametrize(
    "url", ["https://traces.example/", "javascript:alert('{trace_id}')", "//x/{trace_id}", "https:// {trace_id}"]
)
async def test_a_trace_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="trace_url"):
        Options(trace_url=url)


@pytest.mark.parametrize(
    "time", ["1013-06-07T15:43:09+22:01", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:00-23:59"]
)
async def test_a_criterion_may_be_a_time_with_any_offset(api: Api, time: str) -> None:
    await api.stream()
    await api.consumer()
    paths = ("/audit", "/streams/orders/search", "/streams/orders/consumers/ship/dead_letters")
    for path in paths:
        for name in ("since", "until"):
            await api.get(path, **{name: time})
    body = {"start_time": time, "dry_run": True}
    assert await api.post("/streams/orders/consumers/ship/replay", body) == {"data": {"replayed": 0}}
