"""The history watch: looks whether the database has another history, and whether operators have cancelled messages, while
handlers of this process are at work.

A process whose handlers take long makes no calls meanwhile. But after a crash others wait a moment only until its leases
are verified, see `check_in.sql`. And a handler whose message is cancelled is to be stopped, see `cancellations.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import anyio

from headrace import store
from headrace.model.errors import NotGranted, StoreUnavailable, UnknownConsumer
from headrace.runtime.settling.verifier import Verifier

INTERVAL = 0.7
"""Seconds between two looks. Lease calls wait for 2.5 seconds after the start of a server."""


Cancel = Callable[[Mapping[int, Iterable[int]]], None]
"""Takes the messages whose cancellation is requested, by lease. They may be those of other consumers."""


class HistoryWatch:
    """Has the leases of a process verified as soon as the history is another one, and handlers of cancelled messages
    stopped."""

    def __init__(self) -> None:
        self._watched: dict[Verifier, Cancel] = {}

    def join(self, verifier: Verifier, cancel: Cancel) -> None:
        """Verify these leases, too, and stop their handlers."""
        self._watched[verifier] = cancel

    def leave(self, verifier: Verifier) -> None:
        """End that."""
        self._watched.pop(verifier, None)

    async def run(self, database: store.Database) -> None:
        """Look until cancelled. It makes no call while nothing is in flight. An outage is logged by others."""
        while True:
            await anyio.sleep(INTERVAL)
            with suppress(StoreUnavailable, NotGranted):
                await self.look(database)

    async def look(self, database: store.Database) -> None:
        """Look once, unless nothing is in flight. Raises `StoreUnavailable`, and `NotGranted` if a grant was revoked."""
        consumers = [verifier.consumer for verifier in self._watched if verifier.at_work]
        if not consumers:
            return
        watched = await store.watched(database, consumers)
        for verifier, cancel in list(self._watched.items()):
            if verifier.history not in (None, watched.history):
                with suppress(UnknownConsumer):  # its next lease call finds that out, too
                    await verifier.leave_history(verifier.history)
            if watched.cancelled:
                cancel(watched.cancelled)
