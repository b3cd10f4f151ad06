"""Jobs over HTTP: created, worked on by servers, cancelled, and seen only by those who may."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import App, store
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.errors import FilterTooSlow, InvalidData, StoreError
from headrace.model.specs import ConsumerSpec
from headrace.server.background import jobs as runner
from headrace.server.background.jobs import JobRunner
from headrace.store import ClaimedJob
from tests.runtime.running import eventually
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

_CONSUMER = "/streams/orders/consumers/ship"


async def _dead(api: Api, messages: int = 5) -> None:
    await api.stream()
    await api.consumer(max_deliver=1)
    await api.publish(*((f"k.{n}", {"n": n}) for n in range(messages)))
    ids = [one["ack_id"] for one in await api.receive()]
    await api.post(f"{_CONSUMER}/nack", {"ack_ids": ids, "error": "no"})


async def _ended(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found: dict[str, Any] = (await api.get(f"/jobs/{job['id']}"))["data"]
        return None if found["state"] in ("waiting", "running") else found

    found: dict[str, Any] = await eventually(look)
    return found


async def test_a_server_works_on_a_job_until_it_is_done(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHUNK", 2)
    monkeypatch.setattr(runner, "PAUSE", 0)
    await _dead(api)
    selection = {"where": "data.n > 0", "error": "no"}
    made = (
        await api.post(
            "/jobs", {"kind": "redrive", "stream": "orders", "consumer": "ship", "selection": selection}, 201
        )
    )["data"]
    assert (made["kind"], made["stream"], made["consumer"], made["total"]) == ("redrive", "orders", "ship", 4)
    found = await _ended(api, made)
    assert (found["state"], found["done"], found["error"]) == ("done", 4, None)
    assert found["finished_at"] is not None
    assert [letter["seq"] for letter in (await api.get(f"{_CONSUMER}/dead_letters"))["data"]] == [1]
    assert sorted(one["message"]["seq"] for one in await api.receive()) == [2, 3, 4, 5]
    purge = (await api.post("/jobs", {"kind": "purge", "stream": "orders", "consumer": "ship"}, 201))["data"]
    assert (await _ended(api, purge))["done"] == 1
    listed = await api.get("/jobs")
    assert [job["id"] for job in listed["data"]] == [purge["id"], made["id"]]
    assert (await api.get("/jobs", stream="orders", limit=1))["data"] == listed["data"][:1]


async def test_what_is_wrong_with_a_job_is_said(api: Api) -> None:
    await _dead(api)
    for body in (
        {"kind": "move", "stream": "orders", "consumer": "ship"},
        {"kind": "purge", "stream": "orders", "consumer": "ship", "selection": {"nope": 1}},
        {"kind": "purge", "stream": "orders", "consumer": "ship", "selection": {"where": "nope("}},
        {"kind": "purge", "stream": "orders"},
    ):
        await api.refused("POST", "/jobs", body, status=422)
    assert (await api.refused("POST", "/jobs", {"kind": "purge", "stream": "orders", "consumer": "x"}, status=404))[
        "code"
    ] == "unknown_consumer"
    for ref in ("nope", "6a7d0c56-3b8f-4a54-9f0e-1d9d2c7e5a10"):
        assert (await api.refused("GET", f"/jobs/{ref}", status=404))["code"] == "unknown_job"
        assert (await api.refused("POST", f"/jobs/{ref}/cancel", status=404))["code"] == "unknown_job"


async def test_a_job_is_cancelled_and_one_that_has_ended_stays_as_it_is(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(store, "claim_job", never)
    await _dead(api)
    made = (await api.post("/jobs", {"kind": "purge", "stream": "orders", "consumer": "ship"}, 201))["data"]
    assert (await api.post(f"/jobs/{made['id']}/cancel"))["data"]["state"] == "cancelled"
    again = (await api.post(f"/jobs/{made['id']}/cancel"))["data"]
    assert (again["state"], again["done"]) == ("cancelled", 0)


async def test_jobs_are_seen_and_cancelled_only_with_the_scope_of_their_stream(api: Api) -> None:
    await _dead(api)
    await api.stream("other")
    tokens = {
        name: (await api.post("/tokens", {"name": name, "scopes": scopes}, 201))["token"]
        for name, scopes in [("ops", ["admin"])]
    }
    api.client.headers["authorization"] = f"Bearer {tokens['ops']}"
    for name, scopes in (("reader", ["consume:orders"]), ("stranger", ["admin:other"])):
        tokens[name] = (await api.post("/tokens", {"name": name, "scopes": scopes}, 201))["token"]
    body = {"kind": "purge", "stream": "orders", "consumer": "ship"}
    made = (await api.post("/jobs", body, 201))["data"]
    assert made["created_by"] == "ops"
    await _ended(api, made)
    api.client.headers["authorization"] = f"Bearer {tokens['reader']}"
    assert [job["id"] for job in (await api.get("/jobs"))["data"]] == [made["id"]]
    assert (await api.get(f"/jobs/{made['id']}"))["data"]["id"] == made["id"]
    await api.refused("POST", f"/jobs/{made['id']}/cancel", status=403)
    await api.refused("POST", "/jobs", body, status=403)
    api.client.headers["authorization"] = f"Bearer {tokens['stranger']}"
    assert (await api.get("/jobs"))["data"] == []
    for ref in (made["id"], "nope"):
        await api.refused("GET", f"/jobs/{ref}", status=403)


async def test_a_job_of_a_killed_server_goes_on_elsewhere(
    dsn: str, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "POLL", 0.01)
    await store.create_stream(database, "orders")
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))
    await store.create_job(database, "orders", "ship", store.NewJob("purge", DeadLetterCriteria(), 0))
    dead = await store.claim_job(database, 0.05)
    assert isinstance(dead, ClaimedJob)
    app = App(dsn)
    app.attach(JobRunner())
    async with app.running():

        async def look() -> bool:
            return (await store.jobs(database, limit=1))[0].state == "done"

        assert await eventually(look)


async def test_a_step_that_takes_too_long_is_tried_with_fewer_and_fails_with_one(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[int] = []

    async def slow(_: Any, job: ClaimedJob, *, examine: int, **__: Any) -> str:
        examined.append(examine)
        raise FilterTooSlow("too slow")

    monkeypatch.setattr(store, "work_job", slow)
    app, failed = App(dsn, streams=["orders"]), []

    async def fail(_: Any, job: ClaimedJob, error: str) -> None:
        failed.append(error)

    monkeypatch.setattr(store, "fail_job", fail)
    jobs = JobRunner()
    async with app:
        jobs._database = app.database
        states = [
            await jobs._step(ClaimedJob(id=1, claim=1, kind="purge", stream="orders", consumer="ship"))
            for _ in range(6)
        ]
    assert examined == [20_000, 2000, 200, 20, 2, 1]
    assert states == ["running"] * 5 + ["failed"]
    assert failed == ["too slow"]


@pytest.mark.parametrize("failure", [InvalidData("no such thing"), RuntimeError("a bug"), StoreError("disk full")])
async def test_a_job_that_fails_stops_neither_the_server_nor_other_jobs(
    dsn: str, database: store.Database, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(runner, "POLL", 0.01)
    await store.create_stream(database, "orders")
    await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))
    for _ in range(2):
        await store.create_job(database, "orders", "ship", store.NewJob("purge", DeadLetterCriteria(), 0))
    work = store.work_job

    async def fail(connection: Any, job: ClaimedJob, **settings: Any) -> str:
        if job.id == 1:
            raise failure
        return await work(connection, job, **settings)

    monkeypatch.setattr(store, "work_job", fail)
    app = App(dsn)
    app.attach(JobRunner())
    async with app.running():

        async def look() -> bool:
            return (await store.jobs(database, limit=2))[0].state == "done"

        assert await eventually(look)
    failed = (await store.jobs(database, limit=2))[1]
    known = isinstance(failure, InvalidData)
    assert (failed.state, failed.error) == (("failed", "no such thing") if known else ("running", None))
