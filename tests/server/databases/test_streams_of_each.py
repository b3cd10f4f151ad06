"""Everything works for the streams of each database, by their names and ids alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import StoreUnavailable
from headrace.model.specs import ConsumerSpec
from headrace.server.databases import data_databases
from headrace.server.engine import Engine
from headrace.server.monitoring import endpoints
from headrace.sources.webhook import WebhookSpec
from tests.server.calling import Api
from tests.server.databases.conftest import opened, serving_here
from tests.support import servers

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _count(dsn: str, stream: str) -> int | None:
    connection = await asyncpg.connect(dsn)
    try:
        if await connection.fetchval("select to_regclass($1)", f"headrace_streams.{stream}") is None:
            return None
        count: int = await connection.fetchval(f"select count(*) from headrace_streams.{stream}")
        return count
    finally:
        await connection.close()


async def test_a_stream_lives_in_the_database_that_it_was_created_in(two: Api, home_dsn: str, eu_dsn: str) -> None:
    await two.publish(("a", 1), stream="orders")
    await two.publish(("b", 2), ("c", 3), stream="visits")
    assert (await _count(home_dsn, "orders"), await _count(eu_dsn, "orders")) == (1, None)
    assert (await _count(home_dsn, "visits"), await _count(eu_dsn, "visits")) == (None, 2)
    assert (await two.get("/streams/visits"))["database"] == "eu"
    assert "database" not in await two.get("/streams/orders")


async def test_the_data_plane_serves_streams_of_each_database(two: Api) -> None:
    await two.stream("near")
    await two.stream("far", database="eu")
    for stream in ("near", "far"):
        made = await two.consumer("ship", stream)
        await two.publish(("a", 1), ("b", 2), stream=stream)
        first, second = await two.receive(stream=stream)
        for ref in (stream, (await two.get(f"/streams/{stream}"))["id"]):
            path = f"/streams/{ref}/consumers/{made['id']}"
            await two.post(f"{path}/extend", {"ack_ids": [second["ack_id"]]})
        await two.post(f"{path}/nack", {"ack_ids": [second["ack_id"]], "error": "no"})
        await two.post(f"{path}/ack", {"ack_ids": [first["ack_id"]]})
        (again,) = await two.receive(stream=stream)
        assert again["message"]["key"] == "b"
        assert len((await two.get(f"{path}/messages"))["data"]) == 1
        assert (await two.get(f"{path}"))["name"] == "ship"


async def test_a_request_publishes_to_several_streams_of_one_database(two: Api) -> None:
    for stream, database in (("pair_1", "eu"), ("pair_2", "eu"), ("single", None)):
        await two.stream(stream, **({"database": database} if database else {}))

    def messages(*streams: str) -> dict[str, Any]:
        return {"messages": [{"stream": stream, "key": "a", "data": 1} for stream in streams]}

    assert await two.post("/messages", messages("pair_2", "pair_1")) == {"data": {"published": 2}}
    answer = await two.refused("POST", "/messages", messages("pair_1", "single"), status=404)
    assert list(answer["validation_errors"]) == ["messages[1].stream"]
    listed = [(await two.get(f"/streams/{stream}/messages"))["data"] for stream in ("pair_1", "pair_2", "single")]
    assert [len(one) for one in listed] == [1, 1, 0]


async def test_older_dialects_find_a_consumer_in_any_database(two: Api) -> None:
    await two.stream("pulled", database="eu")
    made = await two.consumer("visit", "pulled")
    await two.consumer("order", "orders")
    await two.publish(("a", 1), stream="pulled")
    for ref in (made["id"], "visit", "pulled:visit"):
        found = await two.post(f"/http_pull_consumers/{ref}/receive", {"batch_size": 1})
        (message,) = found["data"]
        await two.post(f"/http_pull_consumers/{ref}/nack", {"ack_ids": [message["ack_id"]]})
    await two.refused("POST", "/http_pull_consumers/nope/receive", {}, status=404)
    await two.consumer("same", "pulled")
    await two.consumer("same", "orders")
    refused = await two.refused("POST", "/http_pull_consumers/same/receive", {}, status=409)
    assert "orders:same or pulled:same" in refused["summary"]


async def test_waiting_receivers_are_woken_in_each_database(two: Api) -> None:
    await two.stream("waited", database="eu")
    await two.consumer("ship", "waited")
    waiting = asyncio.create_task(two.receive(stream="waited", wait_for=30_000))
    engine = two.server.databases.open["eu"].engine
    while not engine.statistics()["waiting"]:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await two.publish(("a", 1), stream="waited")
    assert len(await waiting) == 1


async def test_webhooks_are_published_to_the_database_of_their_stream(two: Api, eu_dsn: str) -> None:
    await two.stream("hooked", database="eu")
    await two.post("/sources", {"name": "shop", "kind": "webhook", "stream": "hooked"}, 201)
    await two.post("/webhook/shop", {"id": 7})
    assert await _count(eu_dsn, "hooked") == 1
    assert [one["name"] for one in (await two.get("/sources"))["data"]] == ["shop"]
    await two.refused("POST", "/sources", {"name": "shop", "kind": "webhook", "stream": "orders"}, status=409)
    await two.call("DELETE", "/sources/shop")
    await two.post("/sources", {"name": "shop", "kind": "webhook", "stream": "orders"}, 201)


async def test_lists_cover_all_databases_in_pages(two: Api) -> None:
    for name in ("b", "d"):
        await two.stream(name)
    for name in ("a", "c", "e"):
        await two.stream(name, database="eu")
    everything = {one["name"] for one in (await two.get("/streams"))["data"]}
    names, after = [], {}
    while True:
        page = await two.get("/streams", limit=2, **after)
        names += [one["name"] for one in page["data"]]
        if page.get("next") is None:
            break
        after = {"after": page["next"]}
    assert names == sorted(everything)
    assert names[:5] == ["a", "b", "c", "d", "e"]
    last = await two.get("/streams", limit=2, before="e1")
    assert [one["name"] for one in last["data"]] == ["d", "e"]
    await two.consumer("x", "a")
    await two.consumer("x", "b")
    assert [one["info"]["stream"] for one in (await two.get("/consumers", limit=2))["data"]] == ["a", "b"]
    snapshot = (await two.get("/live/snapshot"))["data"]
    assert [one["name"] for one in snapshot["streams"]] == names
    assert len(snapshot["processes"]) == 1


async def test_a_name_is_in_one_database_only(two: Api) -> None:
    await two.stream("unique", database="eu")
    assert (await two.refused("POST", "/streams", {"name": "orders", "database": "eu"}, status=409))["code"] == "exists"
    await two.refused("POST", "/streams", {"name": "unique"}, status=409)
    await two.refused("POST", "/streams", {"name": "unique", "database": "eu"}, status=409)
    refused = await two.refused("POST", "/streams", {"name": "x", "database": "nope"}, status=404)
    assert refused["code"] == "unknown_database"
    await two.call("DELETE", "/streams/unique")
    await two.stream("unique")
    assert "database" not in await two.get("/streams/unique")


async def test_a_refused_creation_leaves_the_name_free(two: Api) -> None:
    await two.refused(
        "POST", "/streams", {"name": "x", "database": "eu", "retain_up_to": "1s", "retain_at_least": "2s"}, status=422
    )
    await two.stream("x")


async def test_the_next_creation_finishes_one_that_crashed(two: Api) -> None:
    home = two.server.app.database
    assert await store.place_name(home, "stream", "half", "eu") == "eu"  # the server crashed after this
    await two.refused("POST", "/streams", {"name": "half"}, status=409)
    await two.stream("half", database="eu")
    await two.publish(("a", 1), stream="half")


async def test_a_name_whose_creation_crashed_is_free_after_some_minutes(two: Api) -> None:
    home = two.server.app.database
    await store.place_name(home, "stream", "later", "eu")
    for grace, freed in ((600.0, False), (0.0, True)):
        found = await store.names_of(two.server.databases.open["eu"].app.database, "stream", None)
        await store.reconcile_places(home, "stream", "eu", found, None, grace=grace)
        assert (await store.place_of(home, "stream", "later") is None) == freed


async def test_streams_that_workers_create_directly_are_found(two: Api, home_dsn: str, eu_dsn: str) -> None:
    await two.stream("taken")
    async with servers.opened(eu_dsn) as eu:
        for name in ("direct", "taken"):
            await store.create_stream(eu, name)
    async with serving_here(home_dsn) as other:
        await opened(other, "eu")
        assert (await other.get("/streams/direct"))["database"] == "eu"
        assert "database" not in await other.get("/streams/taken")  # names of the server's own database win
        (entry,) = (await other.server.databases.all()).values()
        assert entry.conflicts == ("stream taken",)


async def test_a_name_that_two_databases_have_is_listed_once(
    two: Api, eu_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that requests reach. The other one reappears when its name is free."""
    await two.stream("twin")
    await two.consumer("theirs", "twin")
    await two.post("/sources", {"name": "twinned", "kind": "webhook", "stream": "twin"}, 201)
    async with servers.opened(eu_dsn) as eu:
        await store.create_stream(eu, "twin")
        await Admin(eu).create_consumer(ConsumerSpec(stream="twin", name="hidden"))
        await Admin(eu).create_source(WebhookSpec(name="twinned", stream="twin"))
    for limit in (1, 2, 100):
        rows = [one async for one in _listed(two, "/streams", limit) if one["name"] == "twin"]
        assert [one.get("database") for one in rows] == [None]
        assert [one["name"] async for one in _listed(two, "/sources", limit)].count("twinned") == 1
        consumers = [one["info"] async for one in _listed(two, "/consumers", limit)]
        assert [one["name"] for one in consumers if one["stream"] == "twin"] == ["theirs"]
    for engine in (two.server.engine, two.server.databases.open["eu"].engine):
        for insert in (
            "insert into headrace_internal.captures (source_id) select id from headrace_internal.sources where name = 'twinned'",
            "insert into headrace_internal.backfills (source_id, relation, state) select source_id, 'a', 'done' from headrace_internal.captures",
        ):
            await engine.app.database.fetchval(insert)
    assert [one["source"] async for one in _listed(two, "/backfills", 1)] == ["twinned"]
    monkeypatch.setattr(two.server.live, "_due", float("-inf"))  # another test may have had one taken within the second
    snapshot = (await two.get("/live/snapshot"))["data"]
    assert [one["name"] for one in snapshot["streams"]].count("twin") == 1
    assert [one["name"] for one in snapshot["sources"]].count("twinned") == 1
    assert [one["name"] for one in snapshot["consumers"] if one["stream"] == "twin"] == ["theirs"]
    monkeypatch.setattr(endpoints, "CACHE_TTL", 0.0)
    monkeypatch.setattr(two.server.monitoring, "_until", float("-inf"))
    assert 'consumer="hidden"' not in (await two.client.get("/metrics")).text
    await two.refused("POST", "/http_pull_consumers/hidden/receive", {}, status=404)
    checked = await two.post("/databases/eu/check")
    assert {"stream twin", "source twinned"} <= set(checked["conflicts"])


async def _listed(api: Api, path: str, limit: int) -> AsyncIterator[dict[str, Any]]:
    """The entries of a list, page by page."""
    place: dict[str, str] = {}
    while True:
        answer = await api.get(path, limit=limit, **place)
        for one in answer["data"]:
            yield one
        if answer.get("next") is None:
            return
        place = {"after": answer["next"]}


async def test_messages_are_republished_within_a_database_only(two: Api) -> None:
    await two.stream("originals", database="eu")
    await two.publish(("a", 1), stream="originals")
    refused = await two.refused("POST", "/streams/originals/republish", {"target": "orders"}, status=404)
    assert "same database" in refused["summary"]
    await two.stream("copies", database="eu")
    assert (await two.post("/streams/originals/republish", {"target": "copies"}))["data"]["published"] == 1


async def test_metrics_and_readiness_cover_all_databases(two: Api) -> None:
    await two.consumer("ship", "visits")
    await two.publish(("a", 1), stream="visits")
    metrics = (await two.client.get("/metrics")).text
    assert 'stream="visits"' in metrics
    assert "headrace_server_messages_published_total 0" not in metrics
    ready = (await two.client.get("/ready")).json()
    assert (ready["ready"], ready["databases"]) == (True, [{"name": "eu", "ready": True, "reasons": []}])


async def test_a_name_that_no_database_takes_is_refused_by_its_sentence(two: Api) -> None:
    for name in ("Bad Name", "x" * 400_000):
        refused = await two.refused("POST", "/streams", {"name": name, "database": "eu"}, status=422)
        assert "1 to 48 lower-case letters" in refused["summary"]


async def test_an_id_in_digits_of_another_script_is_no_defect(two: Api) -> None:
    await two.refused("GET", f"/streams/{chr(0x660) * 32}", status=404)


async def test_what_is_longer_than_a_name_is_neither_looked_up_nor_kept(two: Api) -> None:
    known = set(two.server._router._known)
    await two.refused("GET", f"/streams/{'x' * 1_000}", status=404)
    answer = await two.client.post(f"/v1/webhook/{'x' * 1_000}", content=b"{}")
    assert answer.status_code == 404
    assert {one for one in set(two.server._router._known) - known if len(one.ref) > 100} == set()


async def test_a_database_that_answers_too_slowly_is_away_and_no_defect(
    two: Api, home_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_databases, "RECONCILE_TIMEOUT", 0.0)
    entry = await two.server.databases.entry("eu")
    async with servers.opened(home_dsn) as home:
        with pytest.raises(StoreUnavailable, match="'eu' were not read within 0 s"):
            await entry.reconcile(home)


async def test_the_metrics_do_not_wait_for_a_database_that_does_not_answer(
    two: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two.stream("measured")
    await two.consumer("ship", "measured")
    monitoring, read = two.server.monitoring, two.server.monitoring._read_sources

    async def frozen(engine: Engine) -> Any:
        if engine is not two.server.engine:
            await asyncio.Event().wait()
        return await read(engine)

    monkeypatch.setattr(endpoints, "FURTHER_TIMEOUT", 0.0)
    monkeypatch.setattr(monitoring, "_read_sources", frozen)
    monkeypatch.setattr(monitoring, "_until", float("-inf"))
    assert 'stream="measured"' in (await two.client.get("/metrics")).text
