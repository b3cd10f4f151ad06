"""The judgements of `python -m benchmarks chaos`, its refusals, and two scenarios in short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from benchmarks.chaos import command, traces
from benchmarks.chaos.command import foreign_streams, main
from benchmarks.chaos.ledger import Judgement, judge
from benchmarks.chaos.recovery import Phases, Recovery, recovery
from benchmarks.chaos.scenarios import SCENARIOS, Limits, Outcome
from headrace import store

ROOT = Path(__file__).parents[2]

# --- the ledger


def judged(*numbers: int, confirmed: int = 3, once: bool = True) -> Judgement:
    return judge({"a": confirmed}, [("a", number) for number in numbers], once=once)


def test_a_run_in_order_breaks_nothing() -> None:
    handled = [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert judge({"a": 2, "b": 2}, handled, once=True) == Judgement(4)
    assert Judgement(4).broken == []


def test_a_confirmed_message_that_was_never_handled_is_lost() -> None:
    assert judged(1, 2).broken == ["1 lost"]
    assert judge({"a": 1, "b": 2}, [("a", 1)], once=True).lost == 2


def test_an_unconfirmed_message_may_be_missing_or_handled() -> None:
    assert judged(1, 2, confirmed=1).broken == []


def test_a_second_effect_is_a_breach_only_where_it_must_happen_once() -> None:
    assert judged(1, 2, 2, 2, 3).broken == ["2 doubled"]
    assert judged(1, 2, 2, 2, 3, once=False) == Judgement(3, repeated=2)


def test_a_message_before_an_earlier_one_of_its_key_is_out_of_order() -> None:
    assert judged(1, 3, 2).broken == ["1 out of order"]
    assert judged(2, 1, 3).broken == ["1 out of order"]


def test_a_run_that_is_redelivered_in_order_is_not_out_of_order() -> None:
    assert judged(1, 2, 1, 2, 3, once=False).broken == []
    assert judged(1, 2, 1, 3, 2, once=False).broken == []  # the second one of a process that woke up late


def test_a_trace_cut_off_by_a_kill_has_whole_lines(tmp_path: Path) -> None:
    for number, name in enumerate(["b", "a"]):
        trace = traces.Trace(tmp_path / f"{name}.trace")
        trace.handled("k", number)
        trace.refused(2)
    read = traces.read(tmp_path)
    assert [number for _, _, number in read.handled] == [0, 1]
    assert read.refused == 4


# --- the recovery

PHASES = Phases(began=0, fault=10, over=15, ended=30)


def paced(*stretches: tuple[float, float, float]) -> list[float]:
    """Times from a start to an end at a rate."""
    return [start + i / rate for start, end, rate in stretches for i in range(round((end - start) * rate))]


def test_work_that_a_fault_does_not_reach_is_back_when_the_fault_ends() -> None:
    found = recovery(paced((0, 30, 100)), PHASES)
    assert (found.seconds, found.ratio, found.during_ratio) == pytest.approx((0, 1, 1), abs=0.02)


def test_the_recovery_ends_when_the_rate_is_back_and_stays() -> None:
    found = recovery(paced((0, 10, 100), (18, 22, 250), (22, 30, 100)), PHASES)
    assert found.seconds == pytest.approx(2.4, abs=0.1)  # the window that begins there has enough
    assert found.ratio > 1
    assert found.during_ratio == 0


def test_a_rate_that_stays_lower_is_no_recovery() -> None:
    found = recovery(paced((0, 10, 100), (15, 30, 90)), PHASES)
    assert found.seconds is None
    assert found.ratio == pytest.approx(0.9, abs=0.01)


def test_work_that_stops_again_is_back_only_after_that() -> None:
    found = recovery(paced((0, 10, 100), (15, 18, 400), (22, 30, 100)), PHASES)
    assert found.seconds == pytest.approx(6.9, abs=0.6)


def test_no_work_at_all_is_no_recovery() -> None:
    assert recovery([], PHASES) == Recovery(0, 0, 0, None)
    assert recovery(paced((0, 10, 100)), PHASES).seconds is None


# --- the verdict


def outcome(**changes: Any) -> Outcome:
    good = {"ship": Recovery(100, 0, 100, 1.0), "bill": Recovery(100, 0, 120, 2.0)}
    return Outcome(
        "crash", "", **{"recoveries": good, "judgements": {"ship": Judgement(9), "bill": Judgement(9)}, **changes}
    )


def test_the_verdict_names_each_thing_that_is_wrong() -> None:
    assert outcome().faults(Limits()) == []
    assert outcome(judgements={"ship": Judgement(9, lost=1), "bill": Judgement(9, doubled=2)}).faults(Limits()) == [
        "ship: 1 lost", "bill: 2 doubled",
    ]  # fmt: skip
    slow = {"ship": Recovery(100, 0, 94, 1.0), "bill": Recovery(100, 0, 100, 6.0)}
    assert len(outcome(recoveries=slow).faults(Limits())) == 2
    assert len(outcome(recoveries={"ship": Recovery(100, 0, 100, None)}).faults(Limits())) == 1
    assert outcome(accidents=["handlers-001 ended with 1:\n…"]).faults(Limits()) == ["handlers-001 ended with 1:"]
    assert outcome(pace=110.0).faults(Limits()) == []
    assert "lower it by --rate" in outcome(pace=120.0).faults(Limits())[0]
    assert Outcome("crash", "", skipped="no").faults(Limits()) == []


def test_every_scenario_says_what_it_does() -> None:
    assert all(scenario.about.endswith(".") for scenario in SCENARIOS.values())


# --- the command


@pytest.mark.asyncio
async def test_a_database_with_streams_of_others_is_refused(database: store.Database) -> None:
    assert await foreign_streams(database.dsn) == []
    await store.create_stream(database, "orders")
    assert await foreign_streams(database.dsn) == ["orders"]
    await database.fetch("create schema headrace_chaos")
    await database.fetch("create table headrace_chaos.streams (name text)")
    await database.fetch("insert into headrace_chaos.streams values ('orders')")
    assert await foreign_streams(database.dsn) == []


@pytest.mark.asyncio
async def test_a_database_without_the_schema_has_no_streams_of_others(empty_dsn: str) -> None:
    assert await foreign_streams(empty_dsn) == []


def test_scenarios_that_need_the_server_are_skipped_on_a_given_database(
    dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crash", "disk", "clock", "--database", dsn]) == 0
    assert capsys.readouterr().out.count("SKIPPED: it needs") == 3


def quick(*arguments: str, into: Path) -> list[dict[str, Any]]:
    """Run the command with room for a busy machine, and return the outcomes."""
    started = [sys.executable, "-m", "benchmarks", "chaos", *arguments, "--quick", "--rate", "50", "--json", str(into)]
    done = subprocess.run(
        [*started, "--ratio", "0.3", "--within", "30"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert into.exists(), done.stdout + done.stderr
    found: list[dict[str, Any]] = msgspec.json.decode(into.read_bytes())["outcomes"]
    for one in found:
        for judged in one["judgements"].values():
            assert (judged["lost"], judged["doubled"], judged["out_of_order"]) == (0, 0, 0), done.stdout
            assert judged["handled"] > 0
        assert one["accidents"] == []
    return found


@pytest.mark.long
def test_a_crash_of_the_server_breaks_no_promise(tmp_path: Path) -> None:
    assert [one["scenario"] for one in quick("crash", into=tmp_path / "found.json")] == ["crash"]


@pytest.mark.long
def test_a_given_database_is_left_as_it_was(dsn: str, tmp_path: Path) -> None:
    assert quick("killed", "--database", dsn, into=tmp_path / "found.json")[0]["skipped"] is None
    with psycopg.connect(dsn) as connection:
        left = connection.execute(
            "select name from headrace_internal.streams union all select to_regnamespace('headrace_chaos')::text"
        )
        assert left.fetchall() == [(None,)]


def test_a_scenario_that_fails_as_a_whole_is_an_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def fail(*_: object) -> Outcome:
        raise AssertionError("initdb: no space")

    monkeypatch.setattr(command, "run", fail)
    assert main(["crash", "--json", str(tmp_path / "found.json")]) == 1
    (found,) = msgspec.json.decode((tmp_path / "found.json").read_bytes())["outcomes"]
    assert found["faults"] == ["AssertionError: initdb: no space"]
