"""Manual acknowledgement: receive, ack and nack messages."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import anyio

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import check_limit
from headrace.model.ack_ids import AckIds
from headrace.model.durations import Duration, check_wait, seconds
from headrace.model.errors import FilterTooSlow, InvalidInput
from headrace.model.messages.payloads import expiry
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Batch, Received
from headrace.model.specs import ConsumerSpec
from headrace.model.text.error_text import given_error
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.runtime.leasing.timings import LeaseTimings
from headrace.store.messages.peek import decoded

_PATIENCE = 1.0
"""Seconds for which `receive` looks through messages that don't match, even without `wait`."""


class ManualAcks(Base):
    """The calls that handle messages without a worker."""

    async def receive(
        self,
        stream: str,
        name: str,
        *,
        limit: int = 1,
        wait: float = 0.0,
        ack_ids: Sequence[str] = (),
        nack_ids: Sequence[str] = (),
    ) -> list[Received]:
        """Lease messages for the consumer's `ack_wait`. Ack or nack each of them.

        An ordered consumer leases at most one message of each key, and none of a key that has
        others in flight.

        Args:
            limit: the maximum number of messages.
            wait: seconds to wait for the first one.
            ack_ids: earlier messages to ack before others are leased, which saves a request. Ids of lost leases
                change nothing. `ack` returns them, if you have to know.
            nack_ids: earlier messages to nack before, to be delivered again without a delay.
        """
        check_limit(limit)
        check_wait(wait)
        if ack_ids:
            await self.ack(stream, name, ack_ids)
        if nack_ids:
            await self.nack(stream, name, nack_ids)
        consumer = await self._consumer(stream, name)
        spec, _ = await store.consumer_spec(self._database, consumer)
        timings = LeaseTimings(judging=self._judging)
        calls = LeaseCalls(self._database, consumer, clock=anyio.current_time, timings=timings)
        began = anyio.current_time()
        while True:
            batch = await self._lease(calls, spec, limit)
            if batch.lease_id is not None:
                return await self._received(consumer, batch, batch.lease_id)
            waited = anyio.current_time() - began
            if waited >= (max(wait, _PATIENCE) if batch.more else wait):
                return []
            if not batch.more:
                with anyio.move_on_after(wait - waited):
                    await calls.rest(batch, spec)

    async def _lease(self, calls: LeaseCalls, spec: ConsumerSpec, limit: int) -> Batch:
        calls.begin()
        try:
            async with calls.condition_slot(spec):
                return await calls.lease(uuid4(), limit, spec, shares=[limit], patient=True)
        except FilterTooSlow as error:
            raise self._too_slow(spec.where) from error.__cause__

    async def ack(self, stream: str, name: str, ack_ids: Sequence[str]) -> list[str]:
        """Ack messages. Returns the ids that had no effect, because their lease was lost."""
        return await self._settle(stream, name, ack_ids, None)

    async def nack(
        self,
        stream: str,
        name: str,
        ack_ids: Sequence[str],
        *,
        delay: Duration | None = None,
        error: str | None = None,
        snooze: bool = False,
    ) -> list[str]:
        """Nack messages. They are delivered again after `delay`, by default immediately. The attempt counts.
        Their dead letters would show `error`.

        Args:
            snooze: nothing has failed, and the attempt doesn't count. It needs a delay, and has no error.

        Returns:
            The ids that had no effect, because their lease was lost.
        """
        pause = None if delay is None else seconds(delay, "delay")
        if snooze and (pause is None or error is not None):
            raise InvalidInput("A snooze needs a delay and has no error. Leave out snooze to count a failure.")
        failure = Failure("release", pause) if snooze else Failure("retry", pause, given_error(error))
        return await self._settle(stream, name, ack_ids, failure)

    async def _settle(self, stream: str, name: str, ack_ids: Sequence[str], failure: Failure | None) -> list[str]:
        consumer = await self._consumer(stream, name)
        ids = await self._ack_ids()
        opened = dict(zip(ids.open_all(ack_ids), ack_ids, strict=True))
        leased = {(one.lease, one.seq): ack_id for one, ack_id in opened.items() if one.consumer == consumer}
        of_others = [ack_id for one, ack_id in opened.items() if one.consumer != consumer]
        settlement = Settlement(
            leases=[lease for lease, _ in leased], seqs=[seq for _, seq in leased], failures=[failure] * len(leased)
        )
        lost = await store.settle(self._database, consumer, settlement)
        return of_others + [leased[one.lease_id, one.seq] for one in lost if one.seq is not None]

    async def _received(self, consumer: int, batch: Batch, lease: int) -> list[Received]:
        attempts = batch.attempts or [1] * len(batch.seqs)
        ack_ids = (await self._ack_ids()).seal_all(consumer, lease, batch.seqs, attempts)
        return [
            Received(
                ack_id=ack_id,
                seq=seq,
                key=key,
                data=decoded(data),
                headers=decoded(headers or "null"),
                created_at=created_at,
                attempt=attempt,
                expires_at=expiry(headers, created_at),
            )
            for ack_id, seq, key, data, headers, created_at, attempt in zip(
                ack_ids, batch.seqs, batch.keys, batch.data, batch.headers, batch.created_at, attempts, strict=True
            )
        ]

    async def _ack_ids(self) -> AckIds:
        return AckIds(await store.secret(self._database, "ack_ids"))
