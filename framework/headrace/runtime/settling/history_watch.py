"""The history watch: looks whether the database has another history, while handlers of this process are at work.

A process whose handlers take long makes no calls meanwhile. But after a crash others wait a moment only until its leases
are verified, see `check_in.sql`.
"""

from __future__ import annotations

from contextlib import suppress

import anyio

from headrace import store
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.runtime.settling.verifier import Verifier

INTERVAL = 0.7
"""Seconds between two looks. Lease calls wait for 2.5 seconds after the start of a server."""


class HistoryWatch:
    """Has the leases of a process verified as soon as the history is another one."""

    def __init__(self) -> None:
        self._verifiers: set[Verifier] = set()

    def join(self, verifier: Verifier) -> None:
        """Verify these leases, too."""
        self._verifiers.add(verifier)

    def leave(self, verifier: Verifier) -> None:
        """End that."""
        self._verifiers.discard(verifier)

    async def run(self, database: store.Database) -> None:
        """Look until cancelled. It makes no call while nothing is in flight. An outage is logged by others."""
        while True:
            await anyio.sleep(INTERVAL)
            if any(verifier.at_work for verifier in self._verifiers):
                with suppress(StoreUnavailable):
                    await self._look(database)

    async def _look(self, database: store.Database) -> None:
        history = await store.current_history(database)
        for verifier in list(self._verifiers):
            if verifier.history not in (None, history):
                with suppress(UnknownConsumer):  # its next lease call finds that out, too
                    await verifier.leave_history(verifier.history)
