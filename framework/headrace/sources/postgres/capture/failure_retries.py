"""Retries failures: changes that could not be made into messages. A user requests the retry.

The messages are appended at the stream's current end, so in mode `changes` they come after newer
changes of their key. In mode `rows` only the latest version counts, so a row that was published
again since it failed is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from headrace import store
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec

CHECK_INTERVAL = 2.0
"""Seconds between two checks for failures to retry."""


class FailureRetries:
    """Retries the failures of one source, under one capture lease.

    Args:
        capture: the source's capture.
        spec: its settings.
        shaper: its shaper.
        append_lock: a lock that is held during an append.
        committed: called with the stream's name after new messages were committed.
    """

    def __init__(
        self,
        capture: HeldCapture,
        spec: PostgresSpec,
        shaper: Shaper,
        append_lock: anyio.Lock,
        committed: Callable[[str], None],
    ) -> None:
        self._database = capture.database
        self._number = capture.number
        self._epoch = capture.epoch
        self._spec = spec
        self._shaper = shaper
        self._append_lock = append_lock
        self._committed = committed

    async def run(self) -> None:
        """Check and retry until cancelled. Raises `LeaseLost`, `StoreUnavailable`."""
        while True:
            while await self._retry_batch():
                pass
            await anyio.sleep(CHECK_INTERVAL)

    async def _retry_batch(self) -> bool:
        """Retry some of the failures. Returns whether there were any."""
        failures = await store.failures_to_retry(self._database, self._number)
        if not failures:
            return False
        async with self._append_lock:  # nothing newer is appended between the check and the append
            published_since = await self._published_since(failures)
            shaped_changes, failed = ShapedChanges(), {}
            for failure in failures:
                error = None if failure.key in published_since else self._shaper.retry(failure.data, shaped_changes)
                if error is None:
                    shaped_changes.retried.append(failure.id)
                else:
                    failed[failure.id] = error
            await store.append_captured(self._database, self._number, self._epoch, self._spec.stream, shaped_changes)
        await store.record_failed_retries(self._database, self._number, list(failed), list(failed.values()))
        if shaped_changes.keys:
            self._committed(self._spec.stream)
        return True

    async def _published_since(self, failures: list[store.FailureToRetry]) -> set[str]:
        """Return the keys of rows that have a newer version in the stream than the failed one."""
        if self._spec.mode != "rows":
            return set()
        keyed = [(failure.key, failure.failed_at) for failure in failures if failure.key is not None]
        return await store.keys_captured_since(self._database, self._spec.stream, keyed)
