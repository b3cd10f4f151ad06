"""The benchmarks run, check their results, and print their figures. Speed is not tested here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.model import CORES, FLUSH, LOCK, PROCESSES
from headrace.embedded import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    postgres = EmbeddedPostgres(tmp_path_factory.mktemp("benchmarks") / "postgres")
    with postgres.acquire() as handle:
        yield handle.url
    postgres.destroy()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )


def measure(url: str, file: Path, name: str, *arguments: str) -> dict[str, Any]:
    finished = run(name, "--database", url, "--quick", "--repeats", "2", "--json", str(file), *arguments)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert name in finished.stdout
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.parametrize("name", ["publish", "lease", pytest.param("drain", marks=pytest.mark.long)])
def test_a_benchmark_says_what_it_measured_and_against_what(url: str, tmp_path: Path, name: str) -> None:
    result = measure(url, tmp_path / "result.json", name, "--messages", "1500")
    assert result["benchmark"] == name
    assert result["settings"]["messages"] == 1500
    assert len(result["samples"]) == len(result["limit_samples"]) == 2
    assert min(result["samples"]) <= result["rate"] <= max(result["samples"])
    assert result["ratio"] == pytest.approx(result["rate"] / result["limit"], abs=0.001)
    assert result["checks"]
    assert {"benchmark", "settings", "rate", "samples", "limit", "ratio"} <= result.keys()
    assert {"cpu", "cores"} <= result["machine"].keys()
    assert {"python", "headrace"} <= result["versions"].keys()
    assert {"version", "synchronous_commit", "shared_buffers"} <= result["server"].keys()


def test_list_names_every_benchmark() -> None:
    listed = run("list")
    assert listed.returncode == 0
    assert {
        "publish",
        "lease",
        "drain",
        "work",
        "hotkeys",
        "latency",
        "steady",
        "fanout",
        "retention",
        "compaction",
        "filter",
        "governor",
        "standstill",
        "crowd",
        "multitude",
        "transactional",
        "http",
        "console",
        "capture",
        "spark",
    } <= {line.split()[0] for line in listed.stdout.splitlines()}


@pytest.mark.long
def test_wal_says_what_a_message_writes_on_each_way(url: str, tmp_path: Path) -> None:
    ways = measure(url, tmp_path / "result.json", "wal", "--messages", "2000", "--repeats", "1")["variants"]
    for way in ways.values():
        assert way.keys() >= {"wal_bytes", "commits", "dead_rows"}
    behind = ways["in hundreds, behind a checkpoint"]
    assert behind["wal_bytes"] == pytest.approx(behind["publish_wal_bytes"] + behind["consume_wal_bytes"], rel=1e-3)
    assert ways["bare inserts in hundreds"]["wal_bytes"] < ways["in hundreds"]["wal_bytes"] < behind["wal_bytes"]
    assert ways["in hundreds"]["commits"] < 0.1 < 1 <= ways["one by one"]["commits"]


@pytest.mark.long
def test_latency_has_its_percentiles(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "latency", "--seconds", "1", "--repeats", "1")
    assert 0 < result["p50_ms"] <= result["p95_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert result["variants"]["at_5000"].keys() >= {"rate", "p50_ms", "p95_ms", "p99_ms"}


@pytest.mark.long
def test_retention_says_how_large_the_stream_was(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "retention", "--seconds", "1", "--repeats", "1")
    assert 0 < result["size_min_mb"] <= result["size_max_mb"]
    assert min(result["removed"]) > 0


@pytest.mark.long
def test_transactional_proves_that_each_message_was_written_once(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "transactional", "--messages", "1000", "--repeats", "1")
    for checks in (result["checks"], result["variants"]["one_by_one"]["checks"]):
        assert "1,000 rows written, one for each message" in checks


@pytest.mark.long
def test_compaction_says_how_large_the_table_was(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "compaction", "--messages", "20000", "--repeats", "1")
    assert 0 < result["size_of_the_keys_mb"] <= result["size_max_mb"]


@pytest.mark.long
def test_filter_says_how_long_a_lease_call_took_and_what_others_noticed(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "filter", "--messages", "40000", "--repeats", "1")
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert result["variants"].keys() == {"another_consumer_alone", "another_consumer_beside"}
    assert result["positions_that_consumer_info_showed"]


@pytest.mark.torture  # half a minute or more
def test_governor_says_what_the_best_fixed_setting_did_and_what_it_asked_of_the_downstream(
    url: str, tmp_path: Path
) -> None:
    result = measure(url, tmp_path / "result.json", "governor", "--messages", "3000", "--repeats", "1")
    assert result["limit"] > 0
    assert result["variants"].keys() == {"computes", "downstream_of_20", "load_doubles_and_halves"}
    downstream = result["variants"]["downstream_of_20"]
    assert str(downstream["best_fixed"]) in downstream["fixed"]
    assert 0 <= downstream["share_of_time_above_20"] <= 1
    assert 0 < downstream["most_in_flight"] <= 128


@pytest.mark.long
def test_http_says_where_the_time_went_and_what_waiting_costs(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "http", "--messages", "505", "--seconds", "1", "--repeats", "1")
    small, idle = result["variants"]["small"], result["variants"]["idle"]
    for costs in (result["cpu_us_per_message"], small["cpu_us_per_message"]):
        assert costs.keys() == {"server", "postgres", "client"}
        assert min(costs.values()) > 0
    for found in (result, small):
        assert found["requests"]["receive"] >= 150 > found["requests"]["ack"]  # a receive request acks the batch before
        assert found["only_stores"]["limit"] > 0
        assert "billing: 505 messages came, each once" in found["checks"]
    assert idle["waiting"] == 200
    assert 0 <= idle["server_share_of_a_core"] < 1


@pytest.mark.long
def test_capture_says_what_one_process_captures_how_soon_and_what_a_large_transaction_takes(
    url: str, tmp_path: Path
) -> None:
    result = measure(url, tmp_path / "result.json", "capture", "--messages", "2000", "--seconds", "1", "--repeats", "1")
    assert result["settings"]["changes"] == 2000
    assert result["limit"] > 0
    assert result["bare_inserts"] > 0
    assert result["cpu_us_per_change"]["capturer"] > 0
    paced, big, backfill = (result["variants"][name] for name in ("at_500", "one_transaction", "backfill"))
    assert 0 < paced["p50_ms"] <= paced["p99_ms"] <= paced["max_ms"]
    assert 0 < big["before_mib"] <= big["peak_mib"]
    assert backfill["rate"] > 0
    assert "2,000 messages are in the stream" in result["checks"]


@pytest.mark.torture  # half a minute or more
def test_spark_says_what_each_part_reached_and_what_the_worker_took(url: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    result = measure(url, tmp_path / "result.json", "spark", "--messages", "2000", "--repeats", "1")
    assert result["settings"]["messages"] == 2000
    assert result["variants"].keys() == {
        "handler_typed", "read", "archive", "write", "replay", "aggregate", "lease_to_dataframe", "memory",
    }  # fmt: skip
    for name in ("read", "archive", "write"):
        part = result["variants"][name]
        assert part["ratio"] == pytest.approx(part["rate"] / part["limit"], abs=0.001)
    leased = result["variants"]["lease_to_dataframe"]
    assert 0 < leased["seconds"] < leased["seconds_until_read"]
    memory = result["variants"]["memory"]
    assert memory.keys() == {
        "at_rest",
        *(f"rows_{rows}_of_{backlog}" for rows in (134, 667) for backlog in (600, 2000)),
    }
    assert memory["rows_134_of_2000"]["python_peak_mib"] > 0
    assert result["cpu_us_per_message"]["read"]["java"] > 0
    assert "2,000 rows were read, with all of their bytes" in result["checks"]


@pytest.mark.torture  # half a minute or more
def test_standstill_compares_each_scene_with_the_same_undisturbed(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "standstill", "--messages", "1000", "--repeats", "1")
    assert result["variants"].keys() == {
        "blocked",
        "in_backoff",
        "keys_in_backoff",
        "publishing",
        "interleaved",
        "pinned",
    }
    for scene in result["variants"].values():
        assert scene.keys() >= {"ratio", "p50_ms", "p99_ms", "p99_ratio"}
    assert "1,010 messages that were committed late, leased once each" in result["variants"]["publishing"]["checks"]


@pytest.mark.torture  # half a minute or more
def test_crowd_reports_the_processor_time_of_each_crowd(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "crowd", "--seconds", "1")
    assert result["variants"].keys() == {"of_1", "of_4"}
    assert result["unit"] == "us per message"


@pytest.mark.long
def test_multitude_reports_the_cores_that_idle_consumers_use(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "multitude", "--messages", "1000", "--seconds", "1")
    assert result["settings"]["consumers"] == 100
    assert len(result["idle"]["cores_of_each_process"]) == 2


@pytest.mark.torture  # half a minute or more
def test_scale_compares_predicted_rates_with_measured_ones(url: str, tmp_path: Path) -> None:
    result = measure(url, tmp_path / "result.json", "scale", "--seconds", "0.3", "--repeats", "1")
    assert len(result["variants"]) == result["points"]
    for point in result["variants"].values():
        assert min(point["predicted"], point["measured"]) > 0
        assert point["error"] > -1
        assert 0 <= point["other_programs"] <= 1
    assert {point["resource"] for point in result["curve"].values()} <= {CORES, LOCK, FLUSH, PROCESSES}
    assert any("32 cores" in name for name in result["curve"])
