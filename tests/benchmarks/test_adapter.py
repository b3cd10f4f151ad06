"""The adapter keeps the contract of the public harness, whose part these tests play: load, pressure and chaos."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from benchmarks.adapters.main import MANIFEST, Latencies, Settings
from headrace.embedded import EmbeddedPostgres

ADAPTER = Path(__file__).resolve().parents[2] / "benchmarks" / "adapters" / "main.py"
PATIENCE = 120.0
REQUIRED = {"claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "enqueue_rate", "completion_rate", "queue_depth"}
LEFT = """
    select sum(lag) + sum(num_ack_pending) + sum(parked) + sum(blocked) + sum(dead_letters) from headrace.consumers
"""


class Replica:
    """A running adapter, as the harness starts it. `lines` are what it has emitted."""

    def __init__(self, dsn: str, instance: int = 0, **environment: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self._moved = threading.Condition()
        settings = {"SCENARIO": "long_horizon", "SAMPLE_EVERY_S": "1", "BENCH_INSTANCE_ID": str(instance)}
        settings |= {"PRODUCER_PACING": "harness", "WORKER_COUNT": "8", "BENCH_ACK_WAIT_S": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, str(ADAPTER)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DATABASE_URL": dsn, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.until(lambda: self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._moved:
                self.lines.append(json.loads(line))
                self._moved.notify_all()

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds after a line."""
        with self._moved:
            assert self._moved.wait_for(condition, PATIENCE), self.lines[-12:]

    def next_tick(self) -> None:
        """Wait until the adapter has emitted its metrics once more."""
        seen = len(self.values("completion_rate"))
        self.until(lambda: len(self.values("completion_rate")) > seen)

    def values(self, metric: str) -> list[float]:
        return [line["value"] for line in self.lines if line.get("metric") == metric]

    def total(self, metric: str) -> int:
        return round(sum(self.values(metric)))

    def enqueue(self, count: int) -> None:
        """Ask for jobs by a token of the harness's pacer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"ENQUEUE {count}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.process.kill()
        self._reader.join()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def end(self) -> None:
        """Send SIGTERM. The contract gives it five seconds, and a busy machine some more."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    postgres = EmbeddedPostgres(tmp_path_factory.mktemp("adapter") / "postgres", settings={"max_connections": "400"})
    with postgres.acquire():
        yield postgres
    postgres.destroy()


@pytest.fixture
def dsn(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a fresh database with the name of the manifest, which the harness has created."""
    with postgres.acquire() as handle:
        with psycopg.connect(handle.url, autocommit=True) as connection:
            connection.execute(f"create database {MANIFEST['db_name']}")
        yield urlsplit(handle.url)._replace(path=f"/{MANIFEST['db_name']}").geturl()
        with psycopg.connect(handle.url, autocommit=True) as connection:
            connection.execute(f"drop database {MANIFEST['db_name']} with (force)")


@contextmanager
def replicas(dsn: str, count: int = 1, **environment: str) -> Iterator[list[Replica]]:
    """Start adapters, and kill those that are left at the end, also those that have replaced them in the list."""
    started: list[Replica] = []
    try:
        started.extend(Replica(dsn, number, **environment) for number in range(count))
        yield started
    finally:
        for replica in started:
            replica.kill()


def is_done(dsn: str) -> bool:
    """Whether each job is acked, in the database."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(LEFT).fetchone()
        return row is not None and row[0] == 0


def test_steady_load_has_its_descriptor_and_all_metrics_each_second(dsn: str) -> None:
    environment = {"PRODUCER_PACING": "adapter", "PRODUCER_RATE": "200", "PRODUCER_BATCH_MAX": "10"}
    with replicas(dsn, **environment) as (replica,):
        replica.until(lambda: len(replica.values("queue_depth")) == 4)
        replica.end()
    descriptor, *samples = replica.lines
    assert descriptor["kind"] == "descriptor"
    assert descriptor["db_name"] == MANIFEST["db_name"]
    assert set(descriptor["event_tables"]) >= set(MANIFEST["event_tables"])
    assert set(descriptor["extensions"]) >= set(MANIFEST["extensions"])
    assert descriptor.keys() >= {"version", "schema_version", "started_at"}
    assert {line["metric"] for line in samples} >= REQUIRED
    for line in samples:
        assert (line["kind"], line["subject_kind"], line["subject"]) == ("adapter", "adapter", "")
        assert line["system"] == MANIFEST["system"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["t"])
    assert 0 < replica.values("claim_p50_ms")[-1] <= replica.values("claim_p95_ms")[-1]
    assert replica.total("completion_rate") > 0


def test_the_tables_of_the_manifest_exist_in_the_form_that_the_harness_reads(dsn: str) -> None:
    with replicas(dsn), psycopg.connect(dsn) as connection:
        for table in MANIFEST["event_tables"]:
            assert connection.execute("select pg_total_relation_size(%s)", [table]).fetchone() is not None


def test_the_harness_paces_the_load_and_each_job_completes_once(dsn: str) -> None:
    with replicas(dsn) as (replica,):
        for count in (1, 50, 300):  # the last one is more than a batch has
            replica.enqueue(count)
        replica.until(lambda: replica.total("completion_rate") >= 351)
        replica.next_tick()
        assert replica.total("enqueue_rate") == replica.total("completion_rate") == 351
        assert replica.values("queue_depth")[-1] == 0


def test_the_load_follows_the_file_of_the_harness(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "rate"
    file.write_text("50")
    environment = {"PRODUCER_PACING": "adapter", "PRODUCER_RATE_CONTROL_FILE": str(file)}
    with replicas(dsn, **environment) as (replica,):
        replica.until(lambda: 50 in replica.values("producer_target_rate"))
        file.write_text("75.0")
        replica.until(lambda: 75 in replica.values("producer_target_rate"))
        replica.until(lambda: replica.total("enqueue_rate") > 100)


def test_only_the_first_replica_emits_what_is_of_all(dsn: str) -> None:
    with replicas(dsn, 2) as (first, second):
        for replica in (first, second):
            replica.next_tick()
        assert first.values("queue_depth")
        assert not second.values("queue_depth")
        assert {line["instance_id"] for line in second.lines} == {1}


@pytest.mark.long
def test_the_depth_is_kept(dsn: str) -> None:
    environment = {"PRODUCER_MODE": "depth-target", "TARGET_DEPTH": "200", "PRODUCER_BATCH_MAX": "50"}
    with replicas(dsn, **environment) as (replica,):
        replica.until(lambda: replica.total("completion_rate") > 300)
        assert max(replica.values("queue_depth")) <= 250


# --- pressure


@contextmanager
def idle_in_transaction(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as holder:
        holder.execute("select txid_current()")
        yield


@contextmanager
def active_readers(dsn: str) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(4):
            reader = stack.enter_context(psycopg.connect(dsn))
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            for table in MANIFEST["event_tables"]:
                reader.execute(f"select count(*) from {table}")
        yield


@contextmanager
def nothing(dsn: str) -> Iterator[None]:
    yield


@pytest.mark.long
@pytest.mark.parametrize(
    ("pressure", "tokens", "environment"),
    [
        pytest.param(idle_in_transaction, 10, {}, id="idle-in-tx"),
        pytest.param(active_readers, 10, {}, id="active-readers"),
        pytest.param(nothing, 100, {"WORKER_COUNT": "2"}, id="high-load"),
        pytest.param(nothing, 10, {"BENCH_QUEUE_COUNT": "3"}, id="mixed-queue"),
    ],
)
def test_under_pressure_each_job_completes(
    dsn: str, pressure: Callable[[str], Any], tokens: int, environment: dict[str, str]
) -> None:
    with replicas(dsn, **environment) as (replica,), pressure(dsn):
        for _ in range(tokens):
            replica.enqueue(100)
        replica.until(lambda: replica.total("completion_rate") >= 100 * tokens)
        replica.next_tick()
        assert replica.total("completion_rate") == replica.total("enqueue_rate") == 100 * tokens


# --- chaos


def crash(dsn: str, fleet: list[Replica], postgres: EmbeddedPostgres) -> None:
    fleet[0].kill()
    fleet[0] = Replica(dsn)


def repeated_kills(dsn: str, fleet: list[Replica], postgres: EmbeddedPostgres) -> None:
    for _ in range(3):
        crash(dsn, fleet, postgres)


def killed_backends(dsn: str, fleet: list[Replica], postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(20):
            connection.execute(
                "select pg_terminate_backend(pid, 1000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid() limit 1"
            )


def exhausted_pool(dsn: str, fleet: list[Replica], postgres: EmbeddedPostgres) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(psycopg.connect(dsn))
        fleet[-1].next_tick()


def restarted_postgres(dsn: str, fleet: list[Replica], postgres: EmbeddedPostgres) -> None:
    postgres.restart()


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [crash, repeated_kills, killed_backends, exhausted_pool, restarted_postgres],
    ids=lambda fault: fault.__name__,
)
def test_after_chaos_each_job_is_acked_and_the_load_goes_on(
    dsn: str, postgres: EmbeddedPostgres, fault: Callable[[str, list[Replica], EmbeddedPostgres], None]
) -> None:
    with replicas(dsn, 2, JOB_WORK_MS="20") as fleet:
        killed = fleet[0]
        for _ in range(10):
            fleet[0].enqueue(100)
        fleet[0].until(lambda: killed.total("enqueue_rate") > 0)
        fault(dsn, fleet, postgres)
        for replica in fleet:
            before = replica.total("enqueue_rate")
            replica.enqueue(50)
            replica.until(lambda replica=replica, before=before: replica.total("enqueue_rate") >= before + 50)
        fleet[-1].until(lambda: is_done(dsn))
        for replica in fleet:
            replica.end()


# --- parts


def test_percentiles_have_three_digits_and_forget_after_their_window() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.add(number / 1000, 100.0)
    found = latencies.percentiles(100.5)
    assert found == pytest.approx({"p50": 500, "p95": 950, "p99": 990}, rel=0.001)
    assert latencies.percentiles(131.0) == {"p50": 0, "p95": 0, "p99": 0}


def test_the_histogram_is_bounded() -> None:
    latencies = Latencies()
    for second in range(100):
        for _ in range(1000):
            latencies.add(0.005, float(second))
    assert sum(len(counts) for _, counts in latencies._seconds) == 30


def test_settings_have_the_defaults_of_the_contract() -> None:
    settings = Settings.read({"DATABASE_URL": "postgres://localhost/headrace_bench"})
    assert (settings.batch, settings.payload, settings.work_seconds, settings.sample_every) == (128, 256, 0.001, 5)
    assert settings.mode == "fixed"
    assert settings.streams() == ["jobs"]
