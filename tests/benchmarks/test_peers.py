"""The judgements of `python -m benchmarks peers`, its tables and charts, and a short run with two peers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from array import array
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import chart, comparing, installing, judging, measuring, results
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.children import PeerFailed
from benchmarks.peers.comparing import Comparison, Row, Settings
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.judging import Entry, Verdict, judge
from benchmarks.peers.measuring import Sample
from benchmarks.peers.process.messages import key_of, message
from benchmarks.peers.readings import Reading

ROOT = Path(__file__).parents[2]

# --- what became of the messages


def begun(*numbers: int) -> list[Entry]:
    """Handlers in the order of time; the complement of a number is where one ended."""
    return [Entry(at, number, 0) for at, number in enumerate(numbers)]


def test_each_message_once_and_in_order_is_right() -> None:
    assert judge(begun(0, 1, 2), 3, keys=1) == Verdict(3, lost=0, doubled=0, disordered=0)
    assert judge(begun(0, ~0, 1, ~1), 2, keys=1) == Verdict(2, lost=0, doubled=0, disordered=0)


def test_what_never_came_is_lost_and_what_came_twice_is_doubled() -> None:
    assert judge(begun(0, 2, 2), 4, keys=1) == Verdict(2, lost=2, doubled=1, disordered=0)


def test_a_later_message_of_the_key_before_an_earlier_one_is_out_of_order() -> None:
    assert judge(begun(1, 0), 2, keys=1).disordered == 1
    assert judge(begun(1, 0), 2, keys=2).disordered == 0


def test_a_message_that_begins_before_the_last_one_of_its_key_ended_is_out_of_order() -> None:
    assert judge(begun(0, 1, ~0, ~1), 2, keys=1).disordered == 1
    assert judge(begun(0, 1, ~0, ~1), 2, keys=2).disordered == 0


def test_observations_of_several_processes_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    for name, numbers in (("a", (0, 10, 5, ~0, 40, 5)), ("b", (1, 20, 5))):
        (tmp_path / name).write_bytes(array("q", numbers).tobytes())
    observed = judging.entries([tmp_path / "a", tmp_path / "b"])
    assert [(entry.number, entry.at, entry.published) for entry in observed] == [(0, 10, 5), (1, 20, 5), (~0, 40, 5)]


@pytest.mark.parametrize("keys", sorted({job.keys for job in JOBS.values()}))
def test_consecutive_numbers_have_all_keys(keys: int) -> None:
    assert {key_of(number, keys) for number in range(500, 500 + keys)} == set(range(keys))


def test_payloads_have_the_sizes_that_the_jobs_name() -> None:
    small, large = (
        len(json.dumps(message(12_345, 1000, JOBS[job].note, at=10**15).order, separators=(",", ":")))
        for job in ("drain", "fanout")
    )
    assert 180 <= small <= 240
    assert 9_900 <= large <= 10_200


def test_the_start_of_workers_is_not_in_the_processor_time_of_a_message() -> None:
    used = Reading(wall=1.0, client=0.9, server=1.8, machine=4.0, harness=0.0)  # since 100 messages were handled
    sample = measuring._sample(0.0, 1000, used, None, None, first=100)
    assert (sample.messages, sample.client_us, sample.server_us) == (1000, pytest.approx(1000), pytest.approx(2000))


# --- the catalog


def test_each_package_is_pinned() -> None:
    for peer in PEERS.values():
        separator = "@" if peer.adapter.endswith(".mjs") else "=="
        assert all(re.search(rf"{separator}\d+(\.\d+)+$", package) for package in peer.packages), peer.title


def test_each_peer_has_an_adapter_and_can_do_most_jobs() -> None:
    adapters = ROOT / "benchmarks" / "peers" / "adapters"
    for peer in PEERS.values():
        assert (adapters / (peer.adapter if "." in peer.adapter else f"{peer.adapter}.py")).exists()
        assert peer.cannot.keys() < JOBS.keys()


def test_a_file_that_no_registry_has_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installing, "PLACE", tmp_path)
    monkeypatch.setattr(installing, "ROOT", tmp_path)
    with pytest.raises(installing.NotInstalled, match=r"--opt pgque\.sql=FILE"):
        installing.launch("pgque", {})


# --- the comparison


def settings(*names: str, jobs: tuple[str, ...] = ("single",), repeats: int = 3) -> Settings:
    return Settings(
        postgres="",
        names=names,
        jobs=jobs,
        options={},
        repeats=repeats,
        seconds=1,
        processes=1,
        later=0,
        later_seconds=0,
        limit=1,
        budget=60,
    )


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs that need no server: pgmq fails, and the others have a rate. Returns what was run."""
    run: list[tuple[str, int]] = []

    def measure(peer: Any, job: Any, effort: Any, templates: Any, launch: Any) -> Sample:
        run.append((peer.adapter, effort.count))
        if peer.adapter == "pgmq":
            raise PeerFailed("Traceback\n  somewhere\nOSError: it broke")
        return Sample(rate=1000.0, messages=10, disordered=2)

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(installing, "launch", lambda name, options: {})
    return run


def test_a_peer_that_fails_is_a_row_with_its_error_and_the_others_continue(faked: list[tuple[str, int]]) -> None:
    rows = {row.peer: row for row in Comparison(settings("headrace", "pgmq", "oban")).run()}
    assert [len(row.samples) for row in rows.values()] == [3, 0, 3]
    assert results.remarks(rows["pgmq"]) == ["failed: OSError: it broke"]
    assert faked.count(("pgmq", 200)) == 2  # then it is given up


def test_repeats_are_interleaved_and_each_goes_the_other_way(faked: list[tuple[str, int]]) -> None:
    Comparison(settings("headrace", "oban")).run()
    assert [name for name, _ in faked] == ["headrace", "oban", "oban", "headrace", "headrace", "oban"]


def test_a_backlog_is_as_large_as_the_rate_needs(faked: list[tuple[str, int]]) -> None:
    Comparison(settings("headrace", jobs=("drain", "snapshot"), repeats=1)).run()
    assert [count for _, count in faked] == [comparing.PROBES[0], 1000, 1000]


def test_a_job_that_a_peer_cannot_do_is_a_line_that_says_so(faked: list[tuple[str, int]]) -> None:
    (row,) = Comparison(settings("oban", jobs=("fanout",))).run()
    assert results.remarks(row) == ["a job has one reader"]
    assert not faked


def test_a_peer_that_promises_no_order_is_marked_and_not_failed() -> None:
    sample = Sample(rate=1.0, messages=10, disordered=3)
    assert "no order promised" in results.remarks(Row(peer="oban", job="work", samples=[sample]))
    assert "3 out of order" in results.remarks(Row(peer="headrace", job="work", samples=[sample]))
    assert results.broken([Row(peer="headrace", job="work", samples=[sample])], "headrace") == ["work: 3 out of order"]


def test_the_time_ends_the_repeats_and_not_the_jobs(
    faked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Comparison, "_late", lambda self, place, repeat: True)
    rows = Comparison(settings("headrace", jobs=("single", "publish"))).run()
    assert [len(row.samples) for row in rows] == [1, 1]


# --- tables and charts


def figures() -> list[Row]:
    paced = {"p50_ms": 2.0, "p99_ms": 9.0}
    return [
        Row(peer="headrace", job="drain", samples=[Sample(rate=rate, messages=1) for rate in (90.0, 110.0, 100.0)]),
        Row(peer="pgmq", job="drain", samples=[Sample(rate=400.0, messages=1, wal_bytes=12.0)]),
        Row(peer="oban", job="drain", missing="it is <missing>"),
        Row(peer="headrace", job="latency", samples=[Sample(rate=500.0, messages=1, latency=paced)]),
    ]


def test_the_table_has_medians_with_their_spread_and_the_fastest_first() -> None:
    table = results.markdown(figures())
    names = re.findall(r"^\| (Headrace|pgmq|Oban)", table, re.MULTILINE)
    assert names == ["pgmq", "Headrace", "Oban", "Headrace"]
    assert "| 100/s | 90–110 |" in table
    assert "p50 2.00 ms, p99 9.0 ms" in table
    assert "it is <missing>" in table


def test_the_chart_is_svg_with_a_bar_for_each_figure_and_colours_for_the_dark() -> None:
    drawn = chart.svg(figures(), "2 cores & more")
    root = ElementTree.fromstring(drawn)
    bars = [element for element in root.iter() if element.tag.endswith("rect")]
    widths = [float(bar.get("width") or 0) for bar in bars]
    assert len(bars) == 3
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.2)
    assert "prefers-color-scheme: dark" in drawn
    assert [element.text for element in root.iter() if element.tag.endswith("text")][-1] == "2 cores & more"


# --- the command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "peers", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_an_option_of_an_unknown_peer_is_refused() -> None:
    refused = run("--opt", "kafka.acks=all")
    assert refused.returncode == 2
    assert "write PEER.SETTING=VALUE" in refused.stderr


def test_list_names_the_peers_the_jobs_and_the_schedules() -> None:
    listed = run("--list").stdout
    for name in (*PEERS, *JOBS, "late-ack"):
        assert re.search(rf"^{name} ", listed, re.MULTILINE)


@pytest.mark.long
def test_a_quick_comparison_measures_two_peers(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("peers.json", "peers.md", "peers.svg")}
    done = run(
        "--quick",
        "--json",
        str(files["peers.json"]),
        "--table",
        str(files["peers.md"]),
        "--chart",
        str(files["peers.svg"]),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(files["peers.json"].read_text())
    rows = {(row["peer"], row["job"]): row for row in found["results"]}
    assert {peer for peer, _ in rows} == {"headrace", "pgmq"}
    for row in rows.values():
        assert row["rate"] > 0 or row["job"] == "blocked"
        assert row["lost"] == row["doubled"] == 0
        assert row["server_us"] > 0
        assert row["settings"]
    assert 0 < rows["headrace", "publish"]["wal_bytes"] < 2000
    assert rows["pgmq", "drain"]["dead_rows"] == pytest.approx(2, abs=0.1)  # an update and a delete
    assert "| Headrace |" in files["peers.md"].read_text()
    ElementTree.parse(files["peers.svg"])


@pytest.mark.torture
def test_the_schedules_show_what_headrace_does_with_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    done = run(
        "--schedules", "overtaken,killed,blocked,late,late-ack,restart", "--only", "headrace", "--json", str(file)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = {one["schedule"]: one["seen"] for one in json.loads(file.read_text())["seen"]}
    assert seen["overtaken"] == "the later messages waited for the retry"
    assert seen["killed"].endswith("and no finished one")
    assert seen["blocked"].startswith("of other keys, 90 of 90 messages were handled beside it, and 90 of 90")
    assert seen["blocked"].endswith("0 of 19 later ones of the key")
    assert seen["late"].startswith("handled within")
    assert seen["late-ack"].startswith("handled once")
    assert seen["restart"].startswith("all 200 messages were handled")
