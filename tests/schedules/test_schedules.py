"""The promises hold after every schedule. A short form runs always, an hour of it with `make torture`.

HEADRACE_TEST_SCHEDULES=600 HEADRACE_TEST_SEED=7 make torture ARGS="tests/schedules -s"   ten minutes, from this seed on
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.schedules import campaign, states
from tests.schedules.__main__ import main
from tests.schedules.explore import Outcome, Pair, prioritized, shrunk
from tests.schedules.planted import BUGS
from tests.schedules.schedules import Leg, Schedule, parse

pytestmark = pytest.mark.process

SECONDS = os.environ.get("HEADRACE_TEST_SCHEDULES", "3600")
SEED = os.environ.get("HEADRACE_TEST_SEED", "1")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with campaign.server() as dsn:
        yield dsn


@pytest.mark.parametrize(
    ("state", "operations"),
    [("quiet", ("nack_ann", "lease_bob")), ("idle", ("late", "work")), ("idle", ("replay", "delete_consumer"))],
    ids=str,
)
def test_two_operations_keep_the_promises_whichever_runs_first(
    server: str, state: str, operations: tuple[str, str]
) -> None:
    """All schedules with one preemption. The last pair met in a deadlock once: a replay locked the consumer's row before
    it had the consumer's lock, and a deletion takes them in the other order."""
    with campaign.explorer(server, state) as explorer:
        pair = Pair(explorer, operations)
        outcomes = [*pair.run(), *pair.run()]
    assert len(outcomes) > 10
    assert {str(outcome.schedule): outcome.violations for outcome in outcomes if outcome.violations} == {}


def test_a_message_that_commits_during_a_lease_call_is_not_behind_a_later_one_of_its_key(server: str) -> None:
    """A retry was taken, then an earlier message of its key committed, and the call's second read took it, too."""
    with campaign.explorer(server, "idle") as explorer:
        outcomes = [explorer.run(parse(f"idle late+work_retry+lease_late B C{gate} A C")) for gate in range(1, 60)]
    assert min(outcome.passed[2] for outcome in outcomes) > 15
    assert {str(outcome.schedule): outcome.violations for outcome in outcomes if outcome.violations} == {}


@pytest.mark.parametrize(
    "line",
    [
        # A replay used the settings of before an edit that it had waited for.
        "dead replay+edit_unordered B13",
        # Of two transactions that acked a message, the second one failed with an error of an index, or committed.
        "paused effects_ann+effect_ann B7",
        "quiet effects_ann+effect_second A8 B",
        # Retention removed what an edit of the policy, which had been committed meanwhile, keeps.
        "old trim+edit_retention A3 B",
        "segments drop_segments+edit_retention A3 B",
        # Retention was ended as a deadlock with a replay, which has read the table when it waits for the consumer.
        "segments edit_unordered+replay+drop_segments+effect_ann C11 C14 B A D C",
        "segments edit_unordered+replay+drop_segments+effect_ann C14",
        # A replay had found messages that were erased before it was committed.
        "busy replay+nack_bob+erase A11 C13 C21 B12 A C B",
        # A cancelled message that was acked in a transaction was replayed, and its request was still pending.
        "busy cancel_all+replay+publish_with_id+effect_second A D",
        # A cancelled message that was acked in a transaction was repeated by a replay, before its lease ended.
        "dead replay+effects_ann+cancel+cancel_all D",
        # Messages of a lease without an array were not locked, and one was put back after its cancellation.
        "dead nack_ann+cancel_all A15 B",
        # The rest of a lease was acked at a COMMIT, together with a message that had been put back.
        "history nack_ann+effects_at_commit_ann A",
        "compacted nack_later+effects_at_commit_ann A",
        # The answers of two moves may be read in the other order.
        "busy seek_near+seek_start+scan_one C8 A1 B C A",
        # A replay and a deletion of the stream lock the consumer and the table in different orders.
        "busy delete_stream+replay A8 B",
        # An edit may find that its consumer was deleted, and then declares a new one.
        "spread delete_consumer+edit_unordered A16 B",
        # A call that found only cancelled messages in two segments said that there were no more.
        "segments cancel_all+seek_start+publish",
        # A segment was dropped that a call had looked up. A client repeats the call.
        "segments reject_ann+drop_segments B31 A",
        # An owner was given a message and put it back, while its other call waited for the lock.
        "segments work_retry+publish_in_transaction+scan_one A13 B7 A26 B C A",
    ],
)
def test_a_schedule_that_broke_a_promise_keeps_it(server: str, line: str) -> None:
    schedule = parse(line)
    with campaign.explorer(server, schedule.state) as explorer:
        assert explorer.run(schedule).violations == []


@pytest.mark.parametrize("state", ["busy", "spread"])
def test_random_schedules_keep_the_promises(server: str, state: str) -> None:
    with campaign.explorer(server, state) as explorer:
        generator = random.Random(f"{SEED} {state}")
        names = campaign.usable(explorer.state)
        for _ in range(40):
            schedule = prioritized(explorer, tuple(generator.choices(names, k=3)), generator)
            outcome = explorer.run(schedule)
            assert not outcome.violations, f"{shrunk(explorer, schedule)}"


@pytest.mark.parametrize(
    "name",
    [
        "an ack in a transaction locks no lease",
        "the short way passes keys that another owner holds",
        "missing seqs are no holes",
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    ((_, found),) = campaign.find_planted([name], seed=1, seconds=60)
    assert found.schedule


@pytest.mark.long
def test_every_planted_bug_is_found() -> None:
    assert len(BUGS) >= 30
    assert [bug.name for bug, found in campaign.find_planted([], seed=1, seconds=60) if not found.schedule] == []


def test_a_line_repeats_its_schedule(server: str) -> None:
    line = "quiet ack_first+lease_bob B7 A3x B"
    schedule = Schedule("quiet", ("ack_first", "lease_bob"), (Leg(1, 7), Leg(0, 3, "x"), Leg(1, 0)))
    assert parse(line) == schedule
    assert str(schedule) == line
    with campaign.explorer(server, "quiet") as explorer:
        first, second = (explorer.run(schedule) for _ in range(2))
    assert first == second
    assert first.passed[1] > 7


@pytest.mark.parametrize("line", ["quiet ack_ann+lease_bob A B5c", "idle publish+work A B9c", "quiet effect_ann A7c"])
def test_an_answer_survives_a_crash_of_the_server(server: str, line: str) -> None:
    schedule = parse(line)
    with campaign.explorer(server, schedule.state) as explorer:
        assert explorer.run(schedule).violations == []


def test_a_lost_answer_is_found_after_a_crash(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    with campaign.explorer(server, "quiet") as explorer:
        explorer.runner.controller.execute("checkpoint")  # the crash would take back the explorer's own functions, too
        (found, _) = explorer.run(parse("quiet ack_ann+lease_bob A B5c")).violations
    assert found == "message 1 of key a was acked, and waits to be delivered again"


def test_a_state_is_put_back_after_each_schedule(server: str) -> None:
    with campaign.explorer(server, "busy") as explorer:
        controller = explorer.runner.controller
        texts = set()
        for operations in (
            ("ack_ann", "seek_end"),
            ("delete_consumer", "publish"),
            ("delete_stream", "late"),
            ("migrate",),
        ):
            controller.execute("select gate.restore()")
            texts.add(controller.value("select gate.state()"))
            explorer.run(Schedule("busy", operations, ()))
    assert len(texts) == 1


@pytest.mark.parametrize(
    "name",
    [name if name in ("busy", "compacted") else pytest.param(name, marks=pytest.mark.long) for name in states.STATES],
)
def test_every_operation_runs_alone_in_every_state(server: str, name: str) -> None:
    with campaign.explorer(server, name) as explorer:
        for operation in campaign.usable(explorer.state) + campaign.usable(explorer.state, catalog=True):
            assert explorer.run(Schedule(name, (operation,), ())).violations == [], operation


def test_violations_of_one_kind_are_counted_and_the_first_line_is_kept() -> None:
    report, other = campaign.Report(), campaign.Report()
    for seq, part in ((3, report), (4, report), (5, other)):
        schedule = Schedule("quiet", ("publish",), (Leg(0, seq),))
        part.add("random", Outcome(schedule, [1], [f"messages are never delivered: [{seq}, 9]"]))
    report.merge(other)
    assert [(one.count, one.line) for one in report.violations.values()] == [(3, "quiet publish A3")]
    assert report.kinds["random"] == 3


@pytest.mark.parametrize("count", [1, 7])
def test_an_exploration_ends_after_its_count(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--count", str(count), "--kinds", "random", "--states", "idle", "quiet"]) == 0
    assert f"{count} schedules in" in capsys.readouterr().out


@pytest.mark.torture
def test_an_hour_of_schedules() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.schedules", "explore", "--seconds", SECONDS, "--seed", SEED],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout
