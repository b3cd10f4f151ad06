"""Trying again what could not be made into messages, once somebody asks for it.

What comes of it is appended where the stream is now: of changes behind newer ones of their key. Of rows only the latest version counts, so a
row that has been published since it failed is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from headrace import store
from headrace.sources.postgres.shaping.portion import Portion
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec

EVERY = 2.0
"""Seconds between looks for failures that are to be tried again."""


class Retrying:
    """The retries of one source, under one tenure.

    Args:
        database: Headrace's, open.
        number: the source's number in it.
        epoch: the tenure's.
        spec: its settings.
        shaper: its shaper.
        alone: held while something is appended.
        committed: told the stream's name when there is something new in it.
    """

    def __init__(
        self, database: store.Database, number: int, epoch: int, spec: PostgresSpec, shaper: Shaper, alone: anyio.Lock,
        committed: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._database = database
        self._number = number
        self._epoch = epoch
        self._spec = spec
        self._shaper = shaper
        self._alone = alone
        self._committed = committed

    async def run(self) -> None:
        """Look and try until cancelled. Raises `LeaseLost`, `StoreUnavailable`."""
        while True:
            while await self._some():
                pass
            await anyio.sleep(EVERY)

    async def _some(self) -> bool:
        """Try some of them. Returns whether there were any."""
        found = await store.failures_to_retry(self._database, self._number)
        if not found:
            return False
        async with self._alone:  # nothing newer is appended between looking and appending
            since = await self._published_since(found)
            portion, again = Portion(), {}
            for failure in found:
                error = None if failure.key in since else self._shaper.again(failure.data, portion)
                if error is None:
                    portion.retried.append(failure.id)
                else:
                    again[failure.id] = error
            await store.append_captured(self._database, self._number, self._epoch, self._spec.stream, portion)
        await store.failed_again(self._database, self._number, list(again), list(again.values()))
        if portion.keys:
            self._committed(self._spec.stream)
        return True

    async def _published_since(self, found: list[store.FailureToRetry]) -> set[str]:
        """Keys of rows of which there is a newer version than the one that failed."""
        if self._spec.mode != "rows":
            return set()
        keyed = [(one.key, one.failed_at) for one in found if one.key is not None]
        return await store.captured_since(self._database, self._spec.stream, keyed)
