"""Readiness and metrics of sources that capture tables. A stopped source is reported by name, with its fix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from headrace import App, store
from headrace.model.capture import CaptureFacts
from headrace.server.asgi import Server
from headrace.server.monitoring.health import MAX_UNATTENDED, Health
from headrace.server.options import Options

pytestmark = pytest.mark.asyncio

LONG = 3600.0


@pytest_asyncio.fixture
async def server(dsn: str) -> AsyncIterator[Server]:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(capture=False))  # the tests report captures themselves
    async with app.running():
        yield server


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://localhost") as client:
        yield client


class CaptureBatch:
    """A source. The test reports its capture instead of a capturing process."""

    def __init__(self, database: store.Database, number: int, epoch: int, ref: str) -> None:
        self._database, self._number, self._epoch = database, number, epoch
        self.id = ref

    async def report(self, state: str, *args: Any, **facts: Any) -> None:
        given = CaptureFacts(**facts) if facts else None
        assert await store.report_capture(self._database, self._number, self._epoch, state, *args, facts=given)

    async def append(self, count: int) -> None:
        data = store.CaptureBatch(keys=["k"] * count, data=["1"] * count, position="0/20", captured=count)
        await store.append_captured(self._database, self._number, self._epoch, "orders", data)

    async def release(self) -> None:
        await store.release_capture(self._database, self._number, self._epoch)


async def _captured(server: Server, name: str = "shop") -> CaptureBatch:
    database = server.app.database
    await store.create_source(database, name, "postgres", "orders", {"tables": ["public.orders"]})
    [todo] = [one for one in await store.captures_to_do(database) if one.name == name]
    epoch = await store.take_capture(database, todo.number, uuid4(), LONG)
    assert epoch is not None
    return CaptureBatch(database, todo.number, epoch, todo.id)


async def test_a_source_at_work_or_paused_leaves_a_server_ready(server: Server, client: httpx.AsyncClient) -> None:
    await (await _captured(server)).report("running")
    waiting = await _captured(server, "waiting")
    await waiting.report("waiting", "The stream orders is full.")
    paused = await _captured(server, "held")
    await store.pause_capture(server.app.database, paused.id, paused=True)
    answer = await client.get("/ready")
    assert answer.status_code == 200
    assert answer.json()["sources"] == [
        {"name": "held", "state": "paused", "reason": None, "mend": None},
        {"name": "waiting", "state": "waiting", "reason": "The stream orders is full.", "mend": None},
    ]


async def test_a_stopped_source_is_reported_by_name_with_what_mends_it(
    server: Server, client: httpx.AsyncClient
) -> None:
    source = await _captured(server)
    await (await _captured(server, "other")).report("running")
    await source.report("stopped", "The server's wal_level is replica.", "alter system set wal_level = logical")
    answer = await client.get("/ready")
    assert answer.status_code == 503
    body = answer.json()
    assert body["reasons"] == [
        "The source shop is stopped: The server's wal_level is replica. To fix it: alter system set wal_level = logical"
    ]
    assert [one["name"] for one in body["sources"]] == ["shop"]
    assert (body["database"], body["schema"], body["draining"]) == (True, True, False)


async def test_a_load_balancer_may_leave_sources_out(server: Server, client: httpx.AsyncClient) -> None:
    await (await _captured(server)).report("stopped", "The password is wrong.")
    answer = await client.get("/ready?exclude=sources")
    assert answer.status_code == 200
    assert answer.json()["sources"][0]["reason"] == "The password is wrong."
    assert (await client.get("/ready")).status_code == 503
    unknown = await client.get("/ready?exclude=database")
    assert unknown.status_code == 400
    assert "exclude='database' is invalid" in unknown.json()["summary"]


async def test_a_source_without_a_capturer_is_reported_and_makes_only_capable_processes_not_ready(
    server: Server,
) -> None:
    source = await _captured(server)
    await source.release()
    now = 0.0
    health = Health(server.app, lambda: now)

    async def reasons(seconds: float) -> tuple[str, ...]:
        nonlocal now
        now += seconds
        found = await health.readiness()
        assert [(one.name, one.state) for one in found.sources] == [("shop", "unattended")]
        return found.reasons

    assert await reasons(0) == ()
    assert await reasons(MAX_UNATTENDED + 1) == ()
    health.captures = True
    assert await reasons(1) == (f"No process has captured the source shop for {MAX_UNATTENDED + 2:g} s.",)


async def _samples(client: httpx.AsyncClient) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            if sample.name.startswith(("headrace_source", "headrace_backfill")):
                found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


async def test_metrics_report_the_state_of_each_source_and_its_backfill(
    server: Server, client: httpx.AsyncClient
) -> None:
    source = await _captured(server)
    await source.append(7)
    await source.report(
        "running", held_back=1000, safe_wal_size=500, behind=20, rate=12.5, alarm="It holds back too much.",
        committed_at=datetime.now(UTC) - timedelta(seconds=60),
    )  # fmt: skip
    database = server.app.database
    await store.start_backfill(database, source.id, "public.orders")
    answer = await _samples(client)
    shop = frozenset({"source": "shop", "stream": "orders"}.items())
    expected = {
        "captured_total": 7, "rate": 12.5, "held_back_bytes": 1000, "safe_wal_bytes": 500, "behind_bytes": 20, "alarm": 1, "failures": 0,
    }  # fmt: skip
    for name, value in expected.items():
        assert answer[f"headrace_source_{name}"] == {shop: value}, name
    assert 60 <= answer["headrace_source_newest_seconds"][shop] < 120
    states = {dict(labels)["state"]: value for labels, value in answer["headrace_source_state"].items()}
    assert {state for state, value in states.items() if value} == {"running"}
    assert {"stopped", "paused", "unattended"} < states.keys()
    table = frozenset({"source": "shop", "table": "public.orders"}.items())
    assert answer["headrace_backfill_rows_read"] == {table: 0}
    assert "headrace_backfill_rows" not in answer or answer["headrace_backfill_rows"] == {}


async def test_reports_of_a_process_that_is_gone_are_not_repeated(server: Server, client: httpx.AsyncClient) -> None:
    source = await _captured(server)
    await source.report("running", held_back=1000, behind=20, rate=12.5)
    await source.release()
    answer = await _samples(client)
    for name in ("rate", "held_back_bytes", "behind_bytes"):
        assert answer.get(f"headrace_source_{name}", {}) == {}
    assert list(answer["headrace_source_captured_total"].values()) == [0]


async def test_metrics_without_sources_have_nothing_of_them(client: httpx.AsyncClient) -> None:
    assert await _samples(client) == {}
