"""The settler: writes the outcomes of messages to the store, many at once, one parcel at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from uuid import UUID

import anyio

from headrace import store
from headrace.flow.lease import Parcel
from headrace.flow.signal import Signal
from headrace.model.errors import StoreUnavailable, TimelineChanged, UnknownConsumer
from headrace.model.log import Log
from headrace.model.records import Lost
from headrace.model.watching.processes import own_process_name
from headrace.runtime.instruments import Instruments
from headrace.runtime.settling.dead_letters import DeadLetters
from headrace.runtime.settling.verifier import LOST_HINT, Verifier
from headrace.runtime.stored_consumer import LeasedMessages, StoredConsumer
from headrace.runtime.wake_up import WakeUp
from headrace.store.database.retry import DatabaseRetry

log = Log("headrace")

TIMER_STEP = 0.001
"""Seconds by which uvloop's timers may fire early. A wait that ends before anything is due would be followed by others of
no time at all."""


class Settler:
    """Sends each parcel again until it has arrived. While the settler lags behind, the limit of
    unsettled messages holds up the fetcher.

    Attributes:
        on_settled: a parcel has arrived.
        on_returned: it had messages that are delivered again.
    """

    def __init__(
        self,
        consumer: StoredConsumer,
        leased: LeasedMessages,
        verifier: Verifier,
        dead_letters: DeadLetters,
        instruments: Instruments | None = None,
    ) -> None:
        self._consumer = consumer
        self._settings = consumer.settings
        self._lanes = leased.lanes
        self._in_flight = leased.in_flight
        self._verifier = verifier
        self._dead_letters = dead_letters
        self._clock = consumer.time.clock
        self._instruments = instruments
        self.on_settled = Signal()
        self.on_returned = Signal()
        self._news = WakeUp()
        self._flushed: list[anyio.Event] = []  # events of callers that wait for everything recorded so far
        leased.in_flight.on_outcome.connect(self.wake)

    def wake(self) -> None:
        """Wake up, because there is something to settle, at once or soon."""
        self._news.set()

    async def flush(self) -> None:
        """Wait until everything recorded so far is settled."""
        done = anyio.Event()
        self._flushed.append(done)
        self.wake()
        await done.wait()

    async def run(self, database_retry: DatabaseRetry) -> None:
        """Settle until cancelled."""
        while True:
            self._news.clear()
            waiters, self._flushed = self._flushed, []
            parcel = self._in_flight.collect(self._clock(), everything=bool(waiters))
            if parcel is not None:
                await self._send(parcel, database_retry)
            for waiter in waiters:
                waiter.set()
            if parcel is None and not self._flushed:
                await self._pause()

    async def _pause(self) -> None:
        due = self._in_flight.due
        await self._news.wait(None if due is None else max(0.0, due - self._clock()) + TIMER_STEP)

    async def _send(self, parcel: Parcel, database_retry: DatabaseRetry) -> None:
        doubtful, stored = False, True
        while True:
            history, sent = self._in_flight.history, {lease.id for lease in parcel.leases}
            try:
                lost = await self._settle(parcel)
                break
            except TimelineChanged:
                failure = await self._verified(history)
                if isinstance(failure, StoreUnavailable):
                    await database_retry.wait_after(failure)
                elif failure is not None:
                    lost, stored = [], False
                    break
            except UnknownConsumer:  # deleted, so nothing is left to settle. The fetcher notices that, too
                lost, stored = [], False
                break
            except StoreUnavailable as error:
                doubtful = True
                await database_retry.wait_after(error)
        database_retry.cleared()
        without_effect = lost
        if doubtful:
            # The first try may have settled it and only the answer was lost. Then the next try
            # reports its messages as lost, although the lease may still hold other messages. The
            # next extension notices a lease that is really lost.
            lost = []
        if lost:
            await self._consumer.still_exists()
        if any(lease.hold and lease.id not in sent for lease in parcel.leases):
            # It became a hold while it was settled, which still keeps the keys of these messages.
            with suppress(StoreUnavailable, UnknownConsumer, TimelineChanged):
                await self._settle(parcel)
        self._in_flight.settled(parcel, lost)
        self._report(lost)
        if stored and parcel.failures:
            self._report_failures(parcel, without_effect)
        self._lanes.confirm(parcel.keys)
        self._lanes.settled(parcel.outcomes)
        self.on_settled()
        if parcel.keys:
            self.on_returned()

    async def _verified(self, history: UUID | None) -> StoreUnavailable | UnknownConsumer | None:
        """Verify the leases after this history has ended. Returns the error."""
        try:
            await self._verifier.leave_history(history)
        except (StoreUnavailable, UnknownConsumer) as error:
            return error
        return None

    async def _settle(self, parcel: Parcel) -> list[Lost]:
        """Send the outcomes that may count now, and end holds. The lost part of a hold is not returned."""
        consumer, settlement, history = self._consumer, parcel.settlement, self._in_flight.history
        if not settlement:
            return []
        if self._settings.spec.history is not None:
            settlement.report = parcel.report(own_process_name())
        span: AbstractContextManager[None] = nullcontext()
        if self._instruments is not None:
            acked = parcel.messages - len(parcel.failures)
            failed = sum(failure.kind not in ("release", "cancel") for _, failure in parcel.failures)
            span = self._instruments.settling(self._settings.spec, acked, failed, len(parcel.failures) - failed)
        with span:
            lost = await store.settle(
                consumer.database,
                consumer.id,
                settlement,
                now=consumer.time.now(),
                history=history,
                process=own_process_name() if parcel.failures else None,
            )
        return [item for item in lost if not self._in_flight.is_hold(item.lease_id)] if lost else lost

    def _report_failures(self, parcel: Parcel, lost: list[Lost]) -> None:
        """Report the failures that had an effect for certain: one in doubt may belong to another process by now."""
        without_effect = {(item.lease_id, item.seq) for item in lost}
        for message, failure in parcel.failures:
            if not message.lease.lost and (message.lease.id, message.seq) not in without_effect:
                self._dead_letters.settled(message, failure)

    def _report(self, lost: list[Lost]) -> None:
        if lost and not self._settings.gone:
            spec, event = self._settings.spec, "outcomes lost with their leases"
            log.warning(event, consumer=spec.name, messages=len(lost), ack_wait=spec.ack_wait, hint=LOST_HINT)
