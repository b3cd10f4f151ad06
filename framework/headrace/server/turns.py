"""Turns: calls of one kind go to the database one after the other, as long as that costs nobody much.

Under load a call that waits its turn grows meanwhile: more requests join it, and a call for ten of them costs the database little more
than one for two. Where the database is far away, or there are many consumers, nobody waits longer than a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque

PATIENCE = 0.005
"""Seconds that a call waits for others to end, at most."""


class Turns:
    """`async with turns:` around each call."""

    def __init__(self) -> None:
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._under_way:
            loop = asyncio.get_running_loop()
            turn = loop.create_future()
            self._waiting.append(turn)
            timer = loop.call_later(PATIENCE, _give, turn)
            try:
                await turn
            finally:
                timer.cancel()
        self._under_way += 1

    async def __aexit__(self, *_: object) -> None:
        self._under_way -= 1
        while self._waiting and not self._under_way:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
