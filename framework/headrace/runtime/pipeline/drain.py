"""The drain of a consumer, in the order of the pipeline: lease nothing more, release messages that never started,
let handlers finish, and settle."""

from __future__ import annotations

import anyio

from headrace.model.log import Log
from headrace.runtime.execution.actors import Actors
from headrace.runtime.pipeline.fetcher import Fetcher
from headrace.runtime.pipeline.shared import Shared
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.stored_consumer import LeasedMessages

log = Log("headrace")

SETTLED_A_SECOND = 5_000
"""Messages per second by which the time limit for settling is longer. Unsettled messages of large
batches would otherwise count as crashed."""


class Drain:
    """A drain of one consumer. Handlers may take any time, until `limit` or `hurry` ends that."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        fetcher: Fetcher,
        leased: LeasedMessages,
        acknowledger: Acknowledger,
        actors: Actors,
    ) -> None:
        self._name = name
        self._fetcher = fetcher
        self._lanes = leased.lanes
        self._acknowledger = acknowledger
        self._actors = actors
        self._in_flight = leased.in_flight
        self._timeout = shared.shutdown_timeout
        self._last_settle = shared.timings.last_settle
        self._patience = anyio.CancelScope()
        self.hurried = False

    def limit(self) -> None:
        """Give handlers the time of `shutdown_timeout` from now on."""
        self._patience.deadline = anyio.current_time() + self._timeout

    def hurry(self) -> None:
        """Stop the handlers that still run, now."""
        self.hurried = True
        self._patience.cancel()

    async def run(self, fetched: anyio.Event, acted: anyio.Event) -> None:
        """Drain. `fetched` and `acted` are set when the fetcher and the actors have ended."""
        self._fetcher.stop()
        with self._patience:
            self._release_waiting()
            await fetched.wait()
            self._release_waiting()
            self._actors.finish()
            await acted.wait()
        if not acted.is_set():
            self._release_waiting()
            timeout, hint = None if self.hurried else self._timeout, "their messages are released"
            busy = self._actors.busy
            log.warning("handlers stopped", consumer=self._name, handlers=busy, hint=hint, shutdown_timeout=timeout)
            self._actors.cancel()
            with anyio.move_on_after(self._last_settle):
                await acted.wait()
                await fetched.wait()  # a lease call in progress may still return messages, which must be released
            self._release_waiting()
        with anyio.move_on_after(self._last_settle + self._in_flight.held / SETTLED_A_SECOND):
            await self._acknowledger.flush()
        if held := self._in_flight.held:
            hint = "they are delivered again after their lease"
            log.warning("messages not settled", consumer=self._name, messages=held, hint=hint)

    def _release_waiting(self) -> None:
        self._acknowledger.release(self._lanes.clear())
