"""A server does its own work in each database: it pushes, captures, and finishes what a killed server began."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace import store
from headrace.admin import Admin
from tests.cli.processes import Commands, Running
from tests.server.calling import Api
from tests.server.databases.conftest import opened, serving_here
from tests.server.push.endpoints import Endpoint, listening
from tests.support import captures, servers
from tests.support.captures import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_messages_of_a_further_database_are_pushed(two: Api) -> None:
    await two.stream("pushed", database="eu")
    async with listening(Endpoint()) as endpoint:
        push = {"url": endpoint.url}
        made = await two.post("/streams/pushed/consumers", {"name": "hook", "push": push}, 201)
        await two.publish(("a", 1), ("a", 2), stream="pushed")
        await endpoint.until(2)
        assert (endpoint.keys, endpoint.data) == (["a", "a"], [1, 2])
        await two.call("DELETE", f"/streams/pushed/consumers/{made['id']}")


async def test_a_large_body_is_published_to_its_database(two: Api, eu_dsn: str) -> None:
    await two.stream("large", database="eu")
    await two.stream("large_at_home")
    for stream in ("large", "large_at_home", "large"):
        await two.publish(("a", "x" * 500_000), stream=stream)
    assert two.server.limits.decoding._child is not None
    found = await two.get("/streams/large/messages")
    assert [len(one["data"]) for one in found["data"]] == [500_000, 500_000]
    assert two.server.databases.open["eu"].engine.counts.published >= 2


async def test_tables_of_a_further_database_are_captured(two: Api, eu_dsn: str) -> None:
    await two.stream("pages", database="eu")
    eu = two.server.databases.open["eu"].app.database
    async with captures.slots_dropped(eu_dsn):
        await eu.fetchval("create table page (id int primary key, path text)")
        source = {"kind": "postgres", "name": "page", "stream": "pages", "tables": ["public.page"], "backfill": False}
        await two.post("/sources", source, 201)
        await captures.until_tracked(eu, "page")
        await eu.fetchval("insert into page values (1, '/captured')")
        await captures.until_message(eu, "pages", "/captured")
        found = (await two.get("/sources/page"))["capture"]
        assert found["state"] == "running"
        await two.call("DELETE", "/sources/page")


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with Commands(tmp_path) as commands:
        yield commands


_BLOCKED = """select pid from pg_stat_activity where datname = current_database() and $1 = any (pg_blocking_pids(pid))
    order by query_start"""


async def test_a_server_that_is_killed_while_it_creates_streams_leaves_names_that_are_finished(
    dsn: str, eu_dsn: str, commands: Commands
) -> None:
    async with servers.opened(dsn) as home:
        await Admin(home).add_database("eu", "env:HR_TEST_EU")
    async with servers.opened(eu_dsn) as observer:
        await _killed_between(observer, commands("serve", "--port", "0", "--database", dsn))
        # As if it had been killed between the commit of this one and the confirmation of the name.
        await Admin(observer).create_stream("whole")
    async with serving_here(dsn) as api:
        await opened(api, "eu")
        for name in ("half", "whole"):
            assert await store.place_of(api.server.app.database, "stream", name) == store.Place(name, "eu")
            await api.refused("POST", "/streams", {"name": name}, status=409)
        await api.refused("GET", "/streams/half", status=404)
        await api.stream("half", database="eu")
        for name in ("half", "whole"):
            await api.publish(("a", 1), stream=name)
            assert (await api.get(f"/streams/{name}"))["database"] == "eu"


async def _killed_between(observer: store.Database, running: Running) -> None:
    """Kill a server that has placed two names, before their streams are created."""
    listening, _ = await asyncio.to_thread(running.each, "listening  url=", "database open")
    url = listening.rpartition("url=")[2]
    requests: list[asyncio.Task[httpx.Response]] = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client, observer.transaction() as eu:
        await eu.fetchval("select pg_advisory_xact_lock(1212498508, 0)")  # as every creation in eu does
        holder = await eu.fetchval("select pg_backend_pid()")
        for name in ("half", "whole"):
            requests.append(asyncio.create_task(client.post("/v1/streams", json={"name": name, "database": "eu"})))
            await until(observer, f"select count(*) = $2 from ({_BLOCKED}) as b", holder, len(requests))
        first = await observer.fetchval(f"{_BLOCKED} limit 1", holder)
        running.send(signal.SIGKILL)
        await asyncio.to_thread(running.end)
        await observer.fetchval("select pg_terminate_backend($1, 5000)", first)
    ended = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(one, httpx.TransportError) for one in ended)
