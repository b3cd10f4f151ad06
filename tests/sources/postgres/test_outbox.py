"""The outbox. A batch ends at the end of a transaction, unless the transaction exceeds the limit of waiting changes."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.postgres.capture.outbox import Outbox
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.pgoutput import positions


def change(outbox: Outbox, key: str) -> None:
    outbox.shaped_changes.keys.append(key)
    outbox.shaped_changes.data.append("{}")
    outbox.changed(1, 10)


@pytest.mark.asyncio
async def test_a_batch_ends_at_the_end_of_the_last_whole_transaction() -> None:
    outbox = Outbox(100)
    outbox.begin()
    change(outbox, "a")
    outbox.end(16)
    outbox.begin()
    change(outbox, "b")
    first = await outbox.take()
    assert (first.keys, first.position, first.captured) == (["a"], "0/10", 101)
    outbox.appended()
    change(outbox, "c")
    outbox.end(32)
    second = await outbox.take()
    assert (second.keys, second.position, second.captured) == (["b", "c"], "0/20", 103)


@pytest.mark.asyncio
async def test_a_part_of_a_transaction_that_exceeds_the_limit_is_taken_without_a_position() -> None:
    outbox = Outbox(0, limits=CaptureLimits(outbox_messages=2))
    outbox.begin()
    for key in "ab":
        change(outbox, key)
    part = await outbox.take()
    assert (part.keys, part.position) == (["a", "b"], None)
    change(outbox, "c")
    outbox.end(48)
    rest = await outbox.take()
    assert (rest.keys, rest.position, rest.captured) == (["c"], "0/30", 3)


@pytest.mark.asyncio
async def test_the_capturer_waits_while_too_much_does() -> None:
    outbox = Outbox(0, limits=CaptureLimits(outbox_messages=1))
    outbox.begin()
    change(outbox, "a")
    outbox.end(16)
    async with anyio.create_task_group() as group:
        offered = anyio.Event()

        async def offer() -> None:
            await outbox.offer()
            offered.set()

        group.start_soon(offer)
        await anyio.wait_all_tasks_blocked()
        assert not offered.is_set()
        await outbox.take()
        with anyio.fail_after(10):
            await offered.wait()


@pytest.mark.asyncio
async def test_it_is_idle_only_once_the_taken_batch_is_appended() -> None:
    outbox = Outbox(0)
    assert outbox.idle
    outbox.begin()
    assert not outbox.idle
    outbox.end(16)
    assert not outbox.idle
    await outbox.take()
    assert not outbox.idle
    outbox.appended()
    assert outbox.idle


@given(
    transactions=st.lists(st.integers(0, 5), max_size=20),
    limit=st.integers(1, 7),
    takes=st.lists(st.booleans(), min_size=120, max_size=120),
)
def test_whenever_it_is_taken_all_comes_out_once_and_in_order(
    transactions: list[int], limit: int, takes: list[bool]
) -> None:
    outbox, taken, chances = Outbox(0, limits=CaptureLimits(outbox_messages=limit)), [], iter(takes)
    ends: dict[str, int] = {}
    count = 0

    def take() -> None:
        shaped_changes = outbox._cut()
        if shaped_changes is None:
            return
        taken.extend(shaped_changes.keys)
        if shaped_changes.position is not None:
            assert ends[shaped_changes.position] == len(taken) == shaped_changes.captured

    for number, size in enumerate(transactions, 1):
        outbox.begin()
        for _ in range(size):
            if outbox.full or next(chances):
                take()
            count += 1
            change(outbox, str(count))
        ends[positions.as_text(number)] = count
        outbox.end(number)
        if next(chances):
            take()
    take()
    assert taken == [str(n) for n in range(1, count + 1)]
