"""Each promise, with a history that breaks it, and with histories that look like it and don't."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.histories.consumer import PROMISES
from tests.histories.filters import matches
from tests.histories.made_up import CONSUMER, MadeUp
from tests.histories.simulated import Simulated

Act = Callable[[MadeUp], None]


def never_leased(made: MadeUp) -> None:
    made.publish("a")


def never_leased_of_a_transaction(made: MadeUp) -> None:
    made.publish("a", tx=7)
    made.commit(7)


def never_leased_though_stored(made: MadeUp) -> None:
    made.work("ann", (1, "a"))
    made.line("db", "stored", stream="orders", seqs=[1, 2], keys=["a", "a"])


def never_settled(made: MadeUp) -> None:
    made.lease("ann", (1, "a"))


def forgotten_after_a_retry(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.settle("ann", lease, 1, kind="retry")


def forgotten_after_its_ack_was_refused(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.settle("ann", lease, 1, lost=True)


def forgotten_after_its_lease_was_refused(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "b"))
    made.settle("ann", lease, whole=True, lost=True)


def forgotten_over_a_crash(made: MadeUp) -> None:
    made.lease("ann", (1, "a"))
    made.work("bob", (2, "b"), timeline="b")


def passed_by_a_later_message(made: MadeUp) -> None:
    made.publish("a")
    made.publish("a")
    made.work("ann", (2, "a"))
    made.work("ann", (1, "a"))


def passed_in_one_publish(made: MadeUp) -> None:
    made.publish("a", "a")
    made.work("ann", (2, "a"))
    made.work("ann", (1, "a"))


def given_to_another_process_before_an_earlier_message(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.work("bob", (2, "a"))
    made.settle("ann", lease, 1, lost=True)
    made.work("bob", (1, "a"), attempt=2)


def given_before_one_that_waits_for_its_retry(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.settle("ann", lease, 1, kind="retry")
    made.line("ann", "nothing")
    made.work("ann", (2, "a"))
    made.work("ann", (1, "a"), attempt=2)


def begun_before_an_earlier_message(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "a"))
    made.handle("ann", lease, 2)
    made.handle("ann", lease, 1)
    made.settle("ann", lease, whole=True)


def begun_after_an_earlier_message_failed(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "a"))
    made.handle("ann", lease, 1, outcome="raised")
    made.handle("ann", lease, 2)
    made.settle("ann", lease, whole=True)


def settled_before_an_earlier_message(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    second = made.lease("ann", (2, "a"))
    made.handle("ann", first, 1)
    made.handle("ann", second, 2)
    made.settle("ann", second, whole=True)
    made.settle("ann", first, whole=True)


def two_handlers_at_a_time(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "a"))
    run = made.begin("ann", lease, 1)
    made.handle("ann", lease, 2)
    made.end("ann", run)
    made.settle("ann", lease, whole=True)


def accepted_though_the_key_had_passed_on(made: MadeUp) -> None:
    lease = made.lease("ann", (2, "a"))
    made.work("bob", (1, "a"))  # committed late
    made.settle("ann", lease, 2)


def accepted_after_a_redelivery(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    second = made.lease("bob", (1, "a"), attempt=2)
    made.settle("ann", first, 1)
    made.settle("bob", second, 1)


def accepted_while_the_next_process_waits_for_its_answer(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    frozen = made.send("ann", first, 1)
    second = made.lease("bob", (1, "a"), attempt=2)
    unanswered = made.send("bob", second, 1)
    made.answer("ann", frozen)
    made.answer("bob", unanswered)


def forgotten_after_both_processes_were_refused(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    frozen = made.send("ann", first, 1)
    second = made.lease("bob", (1, "a"), attempt=2)
    unanswered = made.send("bob", second, 1)
    made.answer("ann", frozen, lost=((first, 1),))
    made.answer("bob", unanswered, lost=((second, 1),))


def accepted_whole_after_a_redelivery(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"), (2, "b"))
    second = made.lease("bob", (1, "a"), attempt=2)
    made.settle("ann", first, whole=True)
    made.settle("bob", second, 1)


def accepted_after_a_redelivery_of_another_timeline(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"), number=9)
    second = made.lease("bob", (1, "a"), attempt=2, number=8, timeline="b")
    made.settle("ann", first, 1)
    made.settle("bob", second, 1)


def accepted_twice(made: MadeUp) -> None:
    first = made.work("ann", (1, "a"))
    made.work("bob", (2, "b"))
    made.settle("bob", first + 1, 1)


def redelivered_after_its_ack(made: MadeUp) -> None:
    made.work("ann", (1, "a"))
    made.work("bob", (1, "a"), attempt=2)


def put_back_after_a_redelivery(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    second = made.lease("bob", (1, "a"), attempt=2)
    made.settle("ann", first, 1, kind="retry")
    made.settle("bob", second, 1)


def committed_twice(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    made.settle("ann", first, 1, tx=3)
    made.settle("ann", first, 1, tx=4)


def committed_in_two_timelines_with_two_effects(made: MadeUp) -> None:
    made.work("ann", (1, "a"))
    made.line("db", "effect", consumer=CONSUMER, seqs=[1, 1])


BREACHES: dict[Act, str] = {
    never_leased: "lost",
    never_leased_of_a_transaction: "lost",
    never_leased_though_stored: "lost",
    never_settled: "lost",
    forgotten_after_a_retry: "lost",
    forgotten_after_its_ack_was_refused: "lost",
    forgotten_after_its_lease_was_refused: "lost",
    forgotten_after_both_processes_were_refused: "lost",
    forgotten_over_a_crash: "lost",
    passed_by_a_later_message: "order",
    passed_in_one_publish: "order",
    given_to_another_process_before_an_earlier_message: "order",
    given_before_one_that_waits_for_its_retry: "order",
    begun_before_an_earlier_message: "order",
    begun_after_an_earlier_message_failed: "order",
    settled_before_an_earlier_message: "order",
    two_handlers_at_a_time: "overlap",
    accepted_though_the_key_had_passed_on: "overlap",
    accepted_after_a_redelivery: "stale",
    accepted_while_the_next_process_waits_for_its_answer: "stale",
    accepted_whole_after_a_redelivery: "stale",
    accepted_after_a_redelivery_of_another_timeline: "stale",
    accepted_twice: "stale",
    redelivered_after_its_ack: "stale",
    put_back_after_a_redelivery: "stale",
    committed_twice: "doubled",
    committed_in_two_timelines_with_two_effects: "doubled",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda act: act.__name__)
def test_a_history_that_breaks_a_promise_is_found(breach: Act) -> None:
    made = MadeUp()
    breach(made)
    assert BREACHES[breach] in made.broken(), made.files
    assert made.broken() <= {BREACHES[breach], "order"} if breach is two_handlers_at_a_time else True


def test_every_promise_has_a_history_that_breaks_it() -> None:
    assert set(BREACHES.values()) == set(PROMISES)


def plain_work(made: MadeUp) -> None:
    made.publish("a", "b", "a")
    made.work("ann", (1, "a"), (2, "b"), (3, "a"))
    made.line("db", "stored", stream="orders", seqs=[1, 2, 3], keys=["a", "b", "a"])
    made.line("db", "effect", consumer=CONSUMER, seqs=[1, 2, 3])


def a_publish_without_an_answer(made: MadeUp) -> None:
    made.publish()
    made.publish("a", answer="unknown")
    made.publish("a", answer=None)
    made.publish("a")
    made.work("ann", (3, "a"))


def a_publish_that_is_repeated_with_its_id(made: MadeUp) -> None:
    made.publish("a", answer="unknown")
    made.publish("a", again=1)
    made.publish("a", again=1)
    made.work("ann", (1, "a"))
    made.publish("a", again=1)
    made.publish("a")
    made.work("ann", (2, "a"))


def a_transaction_that_was_rolled_back(made: MadeUp) -> None:
    made.publish("a", tx=7)
    made.commit(7, answer="refused")
    made.publish("a", tx=8)


def a_message_of_a_transaction_that_commits_late(made: MadeUp) -> None:
    made.publish("a", tx=7)
    made.publish("a")
    made.work("ann", (2, "a"))
    made.commit(7)
    made.work("ann", (1, "a"))


def a_message_that_is_scheduled(made: MadeUp) -> None:
    made.publish("a", scheduled=True)
    made.publish("a")
    made.work("ann", (2, "a"))


def a_process_that_is_killed_in_a_handler(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "a"))
    made.begin("ann", lease, 1)
    made.work("bob", (1, "a"), (2, "a"), attempt=2)


def a_process_that_is_killed_before_the_answer(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "b"))
    made.send("ann", lease, whole=True)
    made.publish("a")


def a_settle_that_was_not_carried_out_without_an_answer(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.answer("ann", made.send("ann", lease, 1), "unknown")
    made.work("bob", (1, "a"), attempt=2)


def a_settle_that_is_repeated_after_a_lost_answer(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.answer("ann", made.send("ann", lease, 1), "unknown")
    made.settle("ann", lease, 1, lost=True)


def a_frozen_process_whose_outcomes_are_refused(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "a"))
    made.work("bob", (1, "a"), attempt=2)
    made.handle("ann", lease, 1)
    made.handle("ann", lease, 2)
    made.settle("ann", lease, whole=True, lost=True)
    made.work("bob", (2, "a"), attempt=2)


def a_frozen_process_that_reads_its_lease_late(made: MadeUp) -> None:
    late = next(made._leases)
    made.work("bob", (1, "a"), attempt=2)
    made.lease("ann", (1, "a"), number=late)
    made.settle("ann", late, 1, lost=True)


def a_refusal_that_is_read_when_the_next_process_has_sent_its_outcome(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    frozen = made.send("ann", first, 1)
    second = made.lease("bob", (1, "a"), attempt=2)
    unanswered = made.send("bob", second, 1)
    made.answer("ann", frozen, lost=((first, 1),))
    made.answer("bob", unanswered, "unknown")
    made.settle("bob", second, 1)


def a_lease_of_before_a_crash_that_is_read_after_a_later_outcome(made: MadeUp) -> None:
    made.work("ann", (1, "a"), number=7)
    began = made.tick()
    second = made.lease("bob", (2, "a"), number=8, timeline="b")
    made.send("bob", second, 2)  # and it is killed before the answer
    made.lease("ann", (2, "a"), number=9, began=began)


def a_lease_of_before_a_crash_that_is_read_after_it(made: MadeUp) -> None:
    late, began = next(made._leases), made.tick()
    made.work("bob", (1, "a"), attempt=2)
    made.work("bob", (2, "a"), timeline="b")
    made.lease("ann", (1, "a"), number=late, began=began)


def a_timeline_that_is_read_after_the_next_one(made: MadeUp) -> None:
    made.work("ann", (1, "a"))
    began = made.tick()
    lease = made.lease("bob", (2, "a"), number=9, timeline="c")
    made.lease("ann", (2, "a"), number=8, timeline="b", began=began)
    made.settle("bob", lease, 2, history="c")


def a_timeline_that_is_read_first_in_a_call_that_waited(made: MadeUp) -> None:
    began = made.tick()
    made.lease("bob", (1, "a"), number=8, timeline="b")
    lease = made.lease("ann", (1, "a"), number=7, timeline="c", began=began)
    made.settle("ann", lease, 1, history="c")


def a_lease_that_comes_back_with_a_crash(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    made.lease("bob", (1, "a"), attempt=2)  # whose commit the crash has lost
    made.settle("ann", first, 1, history="b")


def acked_before_a_crash(made: MadeUp) -> None:
    made.work("ann", (1, "a"))


def acked_after_it_in_a_lease_of_before(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.work("bob", (2, "b"), timeline="b")
    made.settle("ann", lease, 1, history="b")


def a_message_that_is_put_back_in_a_lease_that_comes_back(made: MadeUp) -> None:
    first = made.lease("ann", (1, "a"))
    made.lease("bob", (1, "a"), attempt=2)
    made.settle("ann", first, 1, kind="retry", history="b")
    made.work("ann", (1, "a"), attempt=2, timeline="b")


def a_key_that_comes_back_with_a_crash(made: MadeUp) -> None:
    first = made.lease("ann", (2, "a"))
    made.lease("bob", (1, "a"))  # which was committed late, and which the crash reverts, too
    made.settle("ann", first, 2, history="b")
    made.work("bob", (1, "a"), timeline="b")


def a_refused_commit_before_its_lease_is_acked(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.answer("ann", made.send("ann", lease, 1, tx=3), "refused")
    made.settle("ann", lease, whole=True)


def a_lease_that_ends_without_a_message_whose_retry_had_no_answer(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "b"))
    made.answer("ann", made.send("ann", lease, 1, kind="retry"), "unknown")
    made.answer("ann", made.send("ann", lease, 1, kind="retry"), "refused")  # in a history that is over
    made.settle("ann", lease, 2, whole=True, history="b")
    made.work("bob", (1, "a"), attempt=2, timeline="b")


def a_message_that_is_retried(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"), (2, "a"))
    made.handle("ann", lease, 1, outcome="raised")
    call = made.send("ann", lease, 1, kind="retry")
    made.answer("ann", call)
    made.settle("ann", lease, 2, kind="release")
    made.work("bob", (1, "a"), (2, "a"), attempt=2)


def a_lease_that_was_given_before_the_retry_was_answered(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    call = made.send("ann", lease, 1, kind="retry")
    made.answer("ann", call)
    second = made._leases
    made.files["ann"][-1], answered = made.files["ann"][-1], made.now
    number = next(second)
    made.line(
        "ann", "lease", began=answered - 0.0015, consumer=CONSUMER, owner="ann", timeline="a", leases=[(number, 1)], seqs=[2],
        attempts=None, keys=["a"], digests=[2],
    )  # fmt: skip
    made.settle("ann", number, 2, kind="release")
    made.work("bob", (1, "a"), (2, "a"), attempt=2)


def a_dead_letter(made: MadeUp) -> None:
    made.settle("ann", made.lease("ann", (1, "a")), 1, kind="reject")
    made.work("ann", (2, "a"))


def leases_that_a_crash_has_lost(made: MadeUp) -> None:
    made.work("ann", (1, "a"), number=8)
    lost = made.lease("ann", (2, "a"), (3, "b"), number=9)
    made.work("bob", (2, "a"), attempt=2, timeline="b", number=7)
    made.settle("ann", lost, 3)


def a_transaction_whose_lease_is_settled_after_it(made: MadeUp) -> None:
    lease = made.lease("ann", (1, "a"))
    made.settle("ann", lease, 1, tx=3)
    made.settle("ann", lease, whole=True)


def a_handler_that_begins_under_a_lease_that_is_over(made: MadeUp) -> None:
    first, second = made.lease("ann", (1, "a")), made.lease("ann", (2, "a"))
    made.handle("ann", first, 1)
    made.settle("ann", first, 1, lost=True)
    made.handle("ann", second, 2)
    made.settle("ann", second, 2, lost=True)
    made.work("bob", (1, "a"), (2, "a"), attempt=2)


def a_hold_that_is_ended(made: MadeUp) -> None:
    made.work("ann", (1, "a"))
    made.settle("ann", 99, -1)


ALIKE: list[Act] = [
    plain_work,
    a_publish_without_an_answer,
    a_publish_that_is_repeated_with_its_id,
    a_transaction_that_was_rolled_back,
    a_message_of_a_transaction_that_commits_late,
    a_message_that_is_scheduled,
    a_process_that_is_killed_in_a_handler,
    a_process_that_is_killed_before_the_answer,
    a_settle_that_was_not_carried_out_without_an_answer,
    a_settle_that_is_repeated_after_a_lost_answer,
    a_frozen_process_whose_outcomes_are_refused,
    a_frozen_process_that_reads_its_lease_late,
    a_refusal_that_is_read_when_the_next_process_has_sent_its_outcome,
    a_lease_of_before_a_crash_that_is_read_after_a_later_outcome,
    a_lease_of_before_a_crash_that_is_read_after_it,
    a_timeline_that_is_read_after_the_next_one,
    a_timeline_that_is_read_first_in_a_call_that_waited,
    a_lease_that_comes_back_with_a_crash,
    a_message_that_is_put_back_in_a_lease_that_comes_back,
    a_key_that_comes_back_with_a_crash,
    a_refused_commit_before_its_lease_is_acked,
    a_lease_that_ends_without_a_message_whose_retry_had_no_answer,
    a_message_that_is_retried,
    a_lease_that_was_given_before_the_retry_was_answered,
    a_dead_letter,
    leases_that_a_crash_has_lost,
    a_transaction_whose_lease_is_settled_after_it,
    a_handler_that_begins_under_a_lease_that_is_over,
    a_hold_that_is_ended,
]


@pytest.mark.parametrize("act", ALIKE, ids=lambda act: act.__name__)
def test_a_history_that_keeps_the_promises_breaks_none(act: Act) -> None:
    made = MadeUp()
    act(made)
    if act is a_process_that_is_killed_before_the_answer:
        made.work("bob", (3, "c"))
        made.files["pub"][-2]["keys"] = ["c"]
        made.files["pub"][-2]["digests"] = [3]
    assert [violation.what for durable in (False, True) for violation in made.check(durable=durable)] == []


def test_a_crash_reverts_no_outcome_that_was_answered_and_a_failover_may() -> None:
    for act in (acked_before_a_crash, acked_after_it_in_a_lease_of_before):
        made = MadeUp()
        act(made)
        made.work("bob", (1, "a"), attempt=2, timeline="b")
        assert made.broken() == set()
        assert made.broken(durable=True) == {"stale"}


def test_what_waits_at_the_end_of_an_unfinished_run_is_not_lost() -> None:
    made = MadeUp()
    made.publish("a", "b")
    made.lease("ann", (1, "a"))
    assert made.broken() == {"lost"}
    assert made.broken(complete=False) == set()


def test_a_message_that_may_have_died_with_its_last_process_is_not_lost() -> None:
    for attempt, broken in ((4, {"lost"}), (5, set())):
        made = MadeUp(max_deliver=5)
        made.lease("ann", (1, "a"), attempt=attempt)
        assert made.broken() == broken


def test_an_unordered_consumer_may_get_messages_of_a_key_in_any_order() -> None:
    made = MadeUp(ordered=False)
    passed_by_a_later_message(made)
    two_handlers_at_a_time(made)
    assert made.broken() - {"stale"} == set()


def test_only_what_a_filter_matches_can_be_lost() -> None:
    made = MadeUp(filters=["us.*"])
    made.publish("eu.1", "us.1.2", "us")
    assert made.broken() == set()
    made.publish("us.1")
    assert made.broken() == {"lost"}


@pytest.mark.parametrize(
    ("text", "key", "matched"),
    [
        (">", "a.b", True), ("a.>", "a.b.c", True), ("a.>", "a", False), ("a.*", "a.b", True), ("a.*", "a.b.c", False),
        ("*.b", "a.b", True), ("a", "a", True), ("a", "ab", False), ("a.*.>", "a.b", False),
    ],
)  # fmt: skip
def test_filters_match_words(text: str, key: str, matched: bool) -> None:
    assert matches([text], key) is matched


def test_times_of_several_clocks_are_not_compared() -> None:
    made = MadeUp(clocks=("one", "other"))
    passed_by_a_later_message(made)
    assert made.broken(comparable=False) == set()
    made = MadeUp(clocks=("one", "other"))
    accepted_after_a_redelivery(made)  # which the numbers of the leases show
    assert made.broken(comparable=False) == {"stale"}


def checked(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.histories", str(directory), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.process
def test_the_command_shows_the_lines_of_the_first_violation(tmp_path: Path) -> None:
    made = MadeUp()
    accepted_after_a_redelivery(made)
    made.save(tmp_path)
    answer = checked(tmp_path)
    assert answer.returncode == 1
    shown = answer.stdout.split("The first: ")[1].splitlines()
    assert shown[0] == "an outcome of message 1 in lease 1 was accepted, and lease 2 had it later"
    assert [line.split(":")[0] for line in shown[1:]] == ["ann.ndjson", "bob.ndjson", "ann.ndjson", "ann.ndjson", "bob.ndjson", "bob.ndjson"]  # fmt: skip


@pytest.mark.process
def test_a_torn_last_line_is_left_out_and_any_other_one_is_refused(tmp_path: Path) -> None:
    made = MadeUp()
    plain_work(made)
    made.save(tmp_path)
    file = tmp_path / "pub.ndjson"
    file.write_bytes(file.read_bytes() + b'{"t":0.9,"event":"pub')
    answer = checked(tmp_path)
    assert (answer.returncode, "1 of them torn" in answer.stdout) == (0, True)
    file.write_bytes(file.read_bytes() + b"\n")
    assert checked(tmp_path).returncode == 2
    assert checked(tmp_path / "nothing").returncode == 2


@pytest.mark.process
def test_the_checker_imports_nothing_of_what_it_checks() -> None:
    code = "import sys, tests.histories.__main__; print([name for name in sys.modules if name.split('.')[0].startswith('headrace')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_a_database_that_keeps_the_promises_is_never_blamed(seed: int) -> None:
    made = Simulated(seed).run(150)
    assert [violation.what for durable in (False, True) for violation in made.check(durable=durable)] == []


@pytest.mark.parametrize(
    ("skips", "promise"),
    [
        ("busy", "order"),
        ("order", "order"),
        ("fence", "stale"),
        ("lost", "lost"),
        ("again", "stale"),
        ("durable", "stale"),
    ],
)
def test_a_database_that_breaks_a_promise_is_found(skips: str, promise: str) -> None:
    found = sum(
        promise in Simulated(seed, skips).run(400, complete=False).broken(complete=skips == "lost", durable=True)
        for seed in range(20)
    )
    assert found >= 15, f"{skips}: found in {found} of 20"
