"""Suspects: a message that kills its worker is dead-lettered after `max_deliver` crashes, and no
other message is."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from headrace import App, Batch, Message, StoreUnavailable, store
from headrace.model.records import Batch as Leased
from headrace.runtime.execution.suspects import parts
from tests.runtime.poisoned import MAX_DELIVER, POISONED
from tests.runtime.running import Gate, Seen, dead_letters, numbered, parked, pipeline_of, running, seek

ROOT = Path(__file__).parents[2]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["single", "batch"])
async def test_a_message_that_kills_its_worker_is_dead_lettered_after_max_deliver_crashes_and_no_other_is(
    dsn: str, tmp_path: Path, kind: str
) -> None:
    notes = tmp_path / "notes"
    app = App(dsn, streams=["orders"])
    async with app:
        await app.publish_many("orders", [(f"k{seq % 7}", "poison" if seq == 9 else seq) for seq in range(1, 25)])
    codes = []
    with anyio.fail_after(120):
        while not codes or codes[-1] == POISONED:
            command = [sys.executable, "-m", "tests.runtime.poisoned", dsn, str(notes), kind]
            done = await anyio.run_process(command, check=False, cwd=ROOT)
            codes.append(done.returncode)
    assert codes == [POISONED] * MAX_DELIVER + [0], done.stderr.decode()
    async with app:
        (letter,) = await dead_letters(app, "ship")
    assert (letter.seq, letter.attempts, letter.reason) == (9, MAX_DELIVER, "exhausted")
    handled = {int(line) for line in notes.read_text().splitlines()}
    assert handled == set(range(1, 25)) - {9}


class Crashed:
    """Let leases return messages with crash counts, as after the death of a worker, and record
    which are marked as started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, crashes: dict[int, int]) -> None:
        self.marked: list[list[int]] = []
        self.lost: list[int] = []
        self.error: Exception | None = None
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        lease = store.lease

        async def leased(*args: Any, **more: Any) -> Leased:
            batch = await lease(*args, **more)
            if batch.seqs:
                batch = msgspec.structs.replace(batch, crashes=[crashes.get(seq, 0) for seq in batch.seqs])
            return batch

        async def mark_started(_executor: Any, _consumer: int, _leases: list[int], seqs: list[int]) -> list[int]:
            self.marked.append(seqs)
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                await meanwhile()
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            lost, self.lost = self.lost, []
            return lost

        monkeypatch.setattr(store, "lease", leased)
        monkeypatch.setattr(store, "mark_started", mark_started)


@pytest.mark.asyncio
async def test_suspects_are_marked_before_they_start_and_those_marked_before_run_one_at_a_time(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Crashed(monkeypatch, {2: 1, 3: 2, 4: 2})
    gate, seen = Gate(), Seen()

    @app.consumer("orders", concurrency=8)
    async def ship(message: Message) -> None:
        seen.note((message.seq, [seq for seqs in crashed.marked for seq in seqs]))
        await gate.wait()

    async with app:
        await app.publish_many("orders", numbered("abcd"))
        async with running(app):
            await gate.until(3)  # the fourth waits until the third is done
            assert sorted(seq for seq, _ in seen.notes) == [1, 2, 3]
            gate.open()
            await app.idle()
    marked = dict(seen.notes)
    assert 2 in marked[2]
    assert 3 in marked[3]
    assert marked[4][-1] == 4
    assert [1] not in crashed.marked


@pytest.mark.asyncio
async def test_the_wait_for_its_turn_does_not_count_against_the_timeout(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Crashed(monkeypatch, {1: 2, 2: 2})
    attempts: list[tuple[int, int]] = []

    @app.consumer("orders", concurrency=2, timeout="300ms", backoff="1h")
    async def ship(message: Message) -> None:
        attempts.append((message.seq, message.attempt))
        if message.seq == 1:
            await anyio.sleep_forever()

    async with app:
        await app.publish_many("orders", numbered("ab"))
        async with running(app):
            await seen_all(attempts)
    assert attempts == [(1, 1), (2, 1)]
    assert crashed.marked == [[1], [2]]


async def lost_and_held(app: App) -> None:
    """The lease ends, and a hold takes its place."""
    await seek(app, "ship")
    await pipeline_of(app).fetcher._verifier.verify()


async def seen_all(attempts: list[Any]) -> None:
    with anyio.fail_after(60):
        while len(attempts) < 2:
            await anyio.lowlevel.checkpoint()


@pytest.mark.asyncio
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("obstacle", ["lost", "unavailable", "held"])
async def test_a_suspect_that_can_not_be_marked_is_not_started_and_counts_no_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch, batch: int | None, obstacle: str
) -> None:
    crashed = Crashed(monkeypatch, {1: 1})
    if obstacle == "lost":
        crashed.lost = [1]
    elif obstacle == "unavailable":
        crashed.error = StoreUnavailable("gone")
    else:
        crashed.meanwhile = lambda: lost_and_held(app)
    attempts: list[int] = []

    def note(delivery: Message | Batch) -> None:
        attempts.extend(message.attempt for message in delivery.messages)

    async def single(message: Message) -> None:
        note(message)

    async def many(batch: Batch) -> None:
        note(batch)

    app.consumer("orders", name="ship", batch=batch)(many if batch else single)
    async with app:
        await app.publish("orders", "a", 1)
        async with running(app):
            await app.idle()
        assert await parked(app) == []
    assert attempts == [1]
    assert crashed.marked == [[1], [1]]


@pytest.mark.asyncio
async def test_a_batch_with_suspects_runs_them_in_batches_of_one_and_keeps_the_order(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = Crashed(monkeypatch, {2: 1, 3: 2, 5: 3})
    batches: list[list[int]] = []

    @app.consumer("orders", batch=6, concurrency=1)
    async def ship(batch: list[int]) -> None:
        batches.append(batch)

    async with app:
        await app.publish_many("orders", numbered("aaaaaa"))
        async with running(app):
            await app.idle()
    assert batches == [[1, 2], [3], [4], [5], [6]]
    assert crashed.marked == [[2], [3], [5]]


def test_a_batch_without_suspects_is_one_part() -> None:
    assert parts([]) == []


class Suspect(msgspec.Struct):
    seq: int
    crashes: int
    attempt: int


def test_the_suspects_of_a_large_batch_run_some_at_a_time_and_at_their_last_attempt_alone() -> None:
    left: list[Any] = [Suspect(seq, 2, 3) for seq in range(100_000)]
    calls = []
    while len(left) > 1:
        found = parts(left, 5)
        assert [message for part in found for message in part] == left
        calls.append(len(found))
        left = max(found, key=len)
        for suspect in left:
            suspect.attempt += 1
    assert calls == [47, 46, 47], "a hundred and forty calls find the culprit"
    assert left[0].attempt == 6, "which has had its last attempt now"


@pytest.mark.parametrize(
    ("count", "attempt", "max_deliver", "sizes"),
    [(32, 3, 5, [1] * 32), (40, 3, 3, [1] * 40), (40, 9, 3, [1] * 40), (40, 9, -1, [12, 12, 12, 4])],
)
def test_few_suspects_or_those_without_another_attempt_run_alone(
    count: int, attempt: int, max_deliver: int, sizes: list[int]
) -> None:
    others = [Suspect(seq, 1, 2) for seq in range(3)]
    suspects = [Suspect(seq, 2, attempt) for seq in range(count)]
    messages: list[Any] = [*others, *suspects, *others]
    assert [len(part) for part in parts(messages, max_deliver)] == [3, *sizes, 3]
