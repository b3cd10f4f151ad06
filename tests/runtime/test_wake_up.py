"""The flag for which a part of a pipeline waits."""

from __future__ import annotations

import anyio
import pytest

from headrace.runtime.wake_up import WakeUp
from tests.runtime.running import WITHIN

pytestmark = pytest.mark.asyncio


async def test_a_wait_ends_when_the_flag_is_set() -> None:
    flag, ended = WakeUp(), []

    async def wait() -> None:
        ended.append(await flag.wait(WITHIN))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert ended == []
        flag.set()
        flag.set()
    assert ended == [True]


async def test_a_flag_that_is_set_before_ends_the_next_wait_and_stays_set() -> None:
    flag = WakeUp()
    flag.set()
    assert await flag.wait()
    assert await flag.wait(0.0)
    flag.clear()
    assert not await flag.wait(0.0)


async def test_a_wait_for_a_flag_that_is_set_lets_other_tasks_run() -> None:
    flag, ran = WakeUp(), anyio.Event()
    flag.set()
    async with anyio.create_task_group() as group:
        group.start_soon(ran.wait)
        ran.set()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await flag.wait()
        assert scope.cancelled_caught


async def test_a_wait_that_was_cancelled_leaves_nothing_behind() -> None:
    flag = WakeUp()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await flag.wait(WITHIN)
    assert scope.cancelled_caught
    flag.set()
    assert await flag.wait()
