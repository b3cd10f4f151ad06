"""The verifier: compares the leases of this process with the store, before it leases or settles in a new history."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import anyio

from headrace import store
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.verification import void_leases
from headrace.model.log import Log
from headrace.runtime.messages.message import Message
from headrace.runtime.stored_consumer import StoredConsumer

log = Log("headrace")

LOST_HINT = "the process paused for longer than ack_wait, or the consumer was moved; the messages are delivered again"


class Verifier:
    """Checks in, see `check_in.sql`.

    Attributes:
        count: the beginnings and ends of verifications, see `may_have_released`.
    """

    def __init__(self, consumer: StoredConsumer, in_flight: InFlightTracker[Message]) -> None:
        spec = consumer.settings.spec
        self._database = consumer.database
        self._owner = store.Owner(consumer.id, consumer.owner, spec.stream, spec.name)
        self._settings = consumer.settings
        self._in_flight = in_flight
        self._clock = consumer.time.clock
        self._now = consumer.time.now
        self.count = 0
        self._releases = False  # whether leases that this process doesn't track are being released
        self._turn = anyio.Lock(fast_acquire=True)

    @property
    def history(self) -> UUID | None:
        """The history in which the leases were verified. None before the first time."""
        return self._in_flight.history

    @property
    def consumer(self) -> int:
        """The consumer's id."""
        return self._owner.consumer

    @property
    def at_work(self) -> bool:
        """Whether there are leases."""
        return bool(self._in_flight.leases)

    def may_have_released(self, count: int) -> bool:
        """Whether a lease may have been released whose call began at this count and has just returned."""
        return self.count > count or self._releases

    async def leave_history(self, history: UUID | None) -> None:
        """Verify the leases, unless they were verified in another history than this one meanwhile.

        Raises:
            UnknownConsumer, StoreUnavailable: see `verify`.
        """
        async with self._turn:
            if self._in_flight.history == history:
                await self._verify()

    async def verify(self) -> None:
        """Verify the leases. Those that this process doesn't track are released, such as those of a call with a lost
        answer. Those that are lost become holds.

        Raises:
            UnknownConsumer: the consumer was deleted.
            StoreUnavailable: nothing counts until it is verified.
        """
        async with self._turn:
            await self._verify()

    async def check_out(self) -> None:
        """Note that this process holds no leases any more. Raises `StoreUnavailable`."""
        await store.check_out(self._database, self._owner)

    async def _verify(self) -> None:
        self.count += 1
        try:
            await self._check_in()
        finally:
            self.count += 1
            self._releases = False

    async def _check_in(self) -> None:
        """Check in until the store and this process know the same leases."""
        before, known = self._in_flight.history, None
        held = [lease for lease in self._in_flight.leases.values() if not lease.lost]
        while True:
            began, asked = self._clock(), set(self._in_flight.leases)
            answer = await store.check_in(
                self._database, self._owner, self._open(), known, before=before, now=self._now()
            )
            fresh = self._in_flight.leases.keys() - asked
            kept = self._compare(answer, fresh if known is None else set(), rewound=answer.history != before)
            if kept == answer.leases.keys() and fresh <= kept:
                break
            known = list(kept)
            self._releases = True
        self._in_flight.verified(answer.history, began + self._settings.spec.ack_wait)
        lost = sum(lease.lost and lease.left > 0 for lease in held)
        if answer.history == before:
            if lost:
                spec = self._settings.spec
                log.warning("leases lost", consumer=spec.name, leases=lost, ack_wait=spec.ack_wait, hint=LOST_HINT)
            return
        self._settings.version = None  # settings may have been reverted
        if lost:
            event = "leases void: the database crashed, failed over or was restored"
            log.warning(event, consumer=self._owner.name, leases=lost, hint="their messages are delivered again")

    def _open(self) -> list[tuple[int, int, str]]:
        """The messages whose keys must stay with this process: lease, seq and key. None of a lease that may be settled."""
        sent = self._in_flight.sent
        ending = set() if sent is None else {lease.id for lease in sent.ending}
        return [
            (lease.id, seq, lane)
            for lease in self._in_flight.leases.values()
            if self._settings.spec.ordered and lease.id not in ending
            for seq, lane in lease.open.items()
            if isinstance(lane, str)
        ]

    def _compare(self, answer: store.CheckIn, fresh: Collection[int], *, rewound: bool) -> set[int]:
        """Mark leases as lost, and return the ids of those and of the holds that the store has to keep. `fresh`: the leases
        that came after the store was asked. It has released none of them."""
        in_flight = self._in_flight
        for lease in list(in_flight.leases.values()):
            if lease.id in answer.holds or (lease.id not in answer.leases and lease.id not in fresh):
                in_flight.lose(lease, answer.holds.get(lease.id))
        void = []
        if rewound:
            valid = [lease for lease in in_flight.leases.values() if not lease.lost]
            void = void_leases(valid, in_flight.sent, answer.leases, ordered=self._settings.spec.ordered)
        for lease in void:
            in_flight.lose(lease, lease.id)  # the next call releases it, and a hold takes its place
        return in_flight.leases.keys() - {lease.id for lease in void}
