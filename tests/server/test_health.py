"""Health, readiness and metrics. Problems are reported immediately, and concurrent requests share one query."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from headrace import App, store
from headrace.model.errors import StoreUnavailable
from headrace.server.asgi import Server
from headrace.server.monitoring.health import CACHE_TTL, Health
from headrace.server.monitoring.peer_metrics import PeerMetrics
from headrace.server.monitoring.prometheus import BUCKETS, MetricsText, RequestMetrics
from headrace.server.options import Options

pytestmark = pytest.mark.asyncio


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def server(dsn: str) -> AsyncIterator[Server]:
    app = App(dsn, streams=["orders"])
    server = Server(app, Options(max_requests=1))
    async with app.running():
        yield server


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://localhost") as client:
        yield client


async def test_a_server_at_work_is_healthy_and_ready(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    answer = await client.get("/ready")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True, "reasons": [], "draining": False, "database": True, "schema": True, "sources": [],
    }  # fmt: skip
    assert (await client.head("/ready")).content == b""
    answer = await client.post("/health")
    assert (answer.status_code, answer.json()["code"], answer.headers["allow"]) == (
        405,
        "method_not_allowed",
        "GET, HEAD",
    )


async def test_they_are_answered_while_no_request_is(server: Server, client: httpx.AsyncClient) -> None:
    server.limits.under_way = 1
    assert (await client.get("/v1/streams")).status_code == 503
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/ready")).status_code == 200
    assert 'headrace_server_refused_total{status="503"} 1' in (await client.get("/metrics")).text
    server.limits.under_way = 0


async def test_a_server_that_drains_is_healthy_and_not_ready(server: Server, client: httpx.AsyncClient) -> None:
    server.monitoring.health.draining = True
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["draining"] is True
    assert answer.json()["reasons"] == ["The server is stopping, and accepts no more connections."]
    assert (await client.get("/health")).status_code == 200


async def test_an_app_that_does_not_run_is_not_ready(dsn: str) -> None:
    server = Server(App(dsn))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://localhost") as client:
        answer = await client.get("/ready")
        assert answer.status_code == 503
        assert answer.json() == {
            "ready": False
        }  # without a database, it can't be found out whether the caller may know more
        assert "The app is not running." in (await server.monitoring.health.readiness()).reasons
        assert (await client.get("/health")).status_code == 200


async def test_a_schema_that_is_not_ours_is_reported(server: Server, client: httpx.AsyncClient) -> None:
    await server.app.database.fetch(
        "insert into headrace_internal.migrations (version, name, serves_from) values (99, 'of tomorrow', 99)"
    )
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert (answer.json()["database"], answer.json()["schema"]) == (True, False)
    assert "has revision 99" in answer.json()["reasons"][0]


async def test_an_unavailable_database_is_reported(
    server: Server, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: Any) -> int:
        raise StoreUnavailable("The database at 127.0.0.1:1 can't be reached.")

    monkeypatch.setattr(store, "schema_state", away)
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["database"] is False
    assert answer.json()["reasons"] == ["The database at 127.0.0.1:1 can't be reached."]


async def test_a_database_that_does_not_answer_is_not_waited_for(
    server: Server, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: Any) -> int:
        return await anyio.sleep_forever()

    monkeypatch.setattr(store, "schema_state", silent)
    server.monitoring.health = Health(server.app, timeout=0.01)
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["The database did not answer within 0.01 s."]


async def test_many_probes_are_one_question_and_its_answer_counts_for_a_second(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = 0
    real = store.schema_state

    async def counted(database: store.Database) -> store.SchemaState:
        nonlocal queries
        queries += 1
        return await real(database)

    monkeypatch.setattr(store, "schema_state", counted)
    clock = Clock()
    health = Health(server.app, clock)
    assert all(found.ready for found in await asyncio.gather(*(health.readiness() for _ in range(20))))
    assert queries == 1
    clock.now = CACHE_TTL
    await health.readiness()
    assert queries == 2


async def _metrics(client: httpx.AsyncClient) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Scrape the metrics: samples by name and labels."""
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            key = frozenset(sample.labels.items())
            assert key not in labels, "body twice"
            labels[key] = sample.value
    return found


async def test_metrics_count_requests_and_messages(client: httpx.AsyncClient) -> None:
    await client.post("/v1/streams/orders/consumers", json={"name": "ship"})
    messages = [{"key": f"k{n}", "data": n} for n in range(5)]
    await client.post("/v1/streams/orders/messages", json={"messages": messages})
    await client.get("/v1/streams/nowhere/consumers/ship/receive")
    got = (await client.get("/v1/streams/orders/consumers/ship/receive?batch_size=3")).json()["data"]
    ids = [one["ack_id"] for one in got]
    await client.post("/v1/streams/orders/consumers/ship/ack", json={"ack_ids": ids[:2]})
    await client.post("/v1/streams/orders/consumers/ship/nack", json={"ack_ids": ids[2:], "delay_ms": 60_000})
    await client.post("/v1/streams/orders/consumers/ship/ack", json={"ack_ids": ids[:1]})
    answer = await _metrics(client)
    nothing: frozenset[tuple[str, str]] = frozenset()
    for name, count in {"published": 5, "received": 3, "acked": 2, "nacked": 1, "stale": 1, "given_back": 0}.items():
        assert answer[f"headrace_server_messages_{name}_total"] == {nothing: count}, name
    assert answer["headrace_server_receivers_waiting"] == {nothing: 0}
    assert answer["headrace_server_requests_under_way"] == {nothing: 0}
    requests = answer["headrace_server_request_duration_seconds_count"]

    def queries(route: str, method: str, status: str) -> float | None:
        return requests.get(frozenset({"route": route, "method": method, "status": status}.items()))

    assert queries("publish", "POST", "200") == 1
    assert queries("receive", "GET", "200") == 1
    assert queries("receive", "GET", "404") == 1
    assert queries("ack", "POST", "200") == 2
    assert queries("/v1/streams/{stream}/consumers", "POST", "201") == 1
    ship = frozenset({"stream": "orders", "consumer": "ship"}.items())
    assert answer["headrace_consumer_pending"][ship] == 3  # two new messages, and the one that waits for its retry
    assert answer["headrace_consumer_parked"][ship] == 1
    assert answer["headrace_consumer_lag_seconds"][ship] > 0


async def test_requests_of_unknown_paths_are_one_series(client: httpx.AsyncClient) -> None:
    for path in ("/a", "/b", "/v1/streams/orders/nothing/of/that"):
        assert (await client.get(path)).status_code == 404
    answer = await _metrics(client)
    routes = {
        dict(labels)["route"]: count
        for labels, count in answer["headrace_server_request_duration_seconds_count"].items()
    }
    assert routes == {"unknown": 3}


async def test_metrics_want_a_token_once_there_is_one(server: Server, client: httpx.AsyncClient) -> None:
    assert (await client.get("/metrics")).status_code == 200
    created = (await client.post("/v1/tokens", json={"name": "scraper", "scopes": ["admin"]})).json()
    other = (await client.post(
        "/v1/tokens", json={"name": "shop", "scopes": ["publish"]}, headers={"authorization": f"Bearer {created['token']}"}
    )).json()  # fmt: skip
    assert (await client.get("/metrics")).status_code == 401
    for token, status in ((created, 200), (other, 403)):
        answer = await client.get("/metrics", headers={"authorization": f"Bearer {token['token']}"})
        assert answer.status_code == status
    assert (await client.get("/ready")).status_code == 200


async def test_metrics_are_answered_while_the_database_is_away(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "consumers", away)
    assert (await client.get("/metrics")).status_code == 200


async def test_a_histogram_counts_what_lies_below_each_bound() -> None:
    requests = RequestMetrics()
    for seconds in (0.001, 0.0011, 100.0):
        requests.add("r", "GET", 200, seconds)
    requests.add("r", "BREW", 200, 0.0)
    text = MetricsText()
    text.add("h", "histogram", "About.", requests.samples())
    [family] = text_string_to_metric_families(str(text))
    by_bound = {s.labels["le"]: s.value for s in family.samples if s.name == "h_bucket" and s.labels["method"] == "GET"}
    assert len(by_bound) == len(BUCKETS) + 1
    assert (by_bound["0.001"], by_bound["0.0025"], by_bound["60"], by_bound["+Inf"]) == (1, 2, 2, 3)
    assert {s.labels["method"] for s in family.samples} == {"GET", "other"}


async def test_metrics_of_several_processes_are_grouped_under_one_header() -> None:
    text = MetricsText()
    for process in ("1", "2"):
        own = MetricsText()
        own.add("a", "counter", "About a.", [("_total", (), 1.0), ("_total", (("name", 'q"{} \\\n'),), 2.5)])
        own.add("b", "gauge", "About b.", [("", (), 3.0)])
        text.merge(str(own), (("process", process),))
    assert str(text).splitlines() == [
        "# HELP a About a.", "# TYPE a counter",
        'a_total{process="1"} 1', 'a_total{process="1",name="q\\"{} \\\\\\n"} 2.5',
        'a_total{process="2"} 1', 'a_total{process="2",name="q\\"{} \\\\\\n"} 2.5',
        "# HELP b About b.", "# TYPE b gauge", 'b{process="1"} 3', 'b{process="2"} 3',
    ]  # fmt: skip


async def test_peers_exchange_metrics_and_leave_out_those_that_do_not_answer(tmp_path: Path) -> None:
    (tmp_path / "9").touch()  # left behind by a killed process
    peer_metrics = [PeerMetrics(tmp_path, number, lambda number=number: f"metrics of {number}") for number in (1, 2)]  # type: ignore[misc]
    async with anyio.create_task_group() as group:
        for one in peer_metrics:
            group.start_soon(one.answer)
        async with asyncio.timeout(10):
            while not (tmp_path / "2").exists() or not (tmp_path / "1").exists():  # noqa: ASYNC110 - files send no events
                await asyncio.sleep(0)
        assert await peer_metrics[0].ask() == [("metrics of 2", (("process", "2"),))]
        assert await peer_metrics[1].ask() == [("metrics of 1", (("process", "1"),))]
        group.cancel_scope.cancel()
