"""Messages by hand: receive, ack, nack."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import anyio

from headrace import store
from headrace.app.admin.base import Base
from headrace.app.admin.given import (
    check_limit,
    parsed_ack_id,
)
from headrace.model.durations import Duration, seconds
from headrace.model.errors import FilterTooSlow, InvalidInput
from headrace.model.outcomes import RELEASE, Failure, Settlement
from headrace.model.records import (
    Batch,
    Received,
)
from headrace.model.specs import ConsumerSpec
from headrace.store.peek import decoded

_POLL = 0.1
_PATIENCE = 1.0  # seconds to read on while nothing matches, whoever waits for it or not


class ByHand(Base):
    """The calls of who works a message off himself."""

    async def receive(self, stream: str, name: str, *, limit: int = 1, wait: float = 0.0) -> list[Received]:
        """Lease messages for the consumer's `ack_wait`, to be acked or nacked one by one.

        They belong to nobody who has others, so of an ordered consumer there is at most one of each key.

        Args:
            limit: at most so many.
            wait: seconds to wait for the first one.
        """
        check_limit(limit)
        if not 0 <= wait <= 3600:
            raise InvalidInput(f"wait={wait} must be from 0 to 3,600 seconds.")
        consumer = await self._consumer(stream, name)
        spec, _ = await store.consumer_spec(self._database, consumer)
        deadline = anyio.current_time() + wait
        while True:
            found = await self._receive(consumer, spec, limit)
            left = deadline - anyio.current_time()
            if found or left <= 0:
                return found
            await anyio.sleep(min(left, _POLL))

    async def _receive(self, consumer: int, spec: ConsumerSpec, limit: int) -> list[Received]:
        found: list[Received] = []
        patience = anyio.current_time() + _PATIENCE
        while len(found) < limit:
            batch = await self._lease(consumer, spec, limit - len(found))
            heads, surplus = _heads(batch) if spec.ordered else (list(range(len(batch.seqs))), [])
            if surplus and batch.lease_id is not None:
                leases: list[int] = [batch.lease_id] * len(surplus)
                settlement = Settlement(leases=leases, seqs=surplus, failures=[RELEASE] * len(surplus))
                await store.settle(self._database, consumer, settlement)
            found += [_received(batch, place) for place in heads]
            if not (surplus or batch.more) or (not heads and (found or anyio.current_time() > patience)):
                break
        return found

    async def _lease(self, consumer: int, spec: ConsumerSpec, limit: int) -> Batch:
        """To another owner each time, to whom the keys are busy that have been found before."""
        judging = None if spec.where is None else self._judging
        try:
            return await store.lease(self._database, consumer, uuid4(), limit, judging=judging)
        except FilterTooSlow as error:
            raise self._too_slow(spec.where) from error.__cause__

    async def ack(self, stream: str, name: str, ack_ids: Sequence[str]) -> list[str]:
        """Settle messages as done. Returns the ids that changed nothing, since their lease was lost."""
        return await self._settle(stream, name, ack_ids, None)

    async def nack(
        self, stream: str, name: str, ack_ids: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[str]:
        """Give messages back as failed: they come again after `delay`, at once by default; the attempt counts.

        Returns:
            The ids that changed nothing, since their lease was lost.
        """
        pause = None if delay is None else seconds(delay, "delay")
        return await self._settle(stream, name, ack_ids, Failure("retry", pause, error))

    async def _settle(self, stream: str, name: str, ack_ids: Sequence[str], failure: Failure | None) -> list[str]:
        given = {parsed_ack_id(ack_id): ack_id for ack_id in ack_ids}
        consumer = await self._consumer(stream, name)
        settlement = Settlement(
            leases=[lease for lease, _ in given], seqs=[seq for _, seq in given], failures=[failure] * len(given)
        )
        lost = await store.settle(self._database, consumer, settlement)
        return [given[one.lease_id, one.seq] for one in lost if one.seq is not None]


def _heads(batch: Batch) -> tuple[list[int], list[int]]:
    """Of a batch the places of the first message of each key, and the seqs of the others."""
    keys: set[str] = set()
    heads, surplus = [], []
    for place, key in enumerate(batch.keys):
        if key in keys:
            surplus.append(batch.seqs[place])
        else:
            keys.add(key)
            heads.append(place)
    return heads, surplus


def _received(batch: Batch, place: int) -> Received:
    return Received(
        ack_id=f"{batch.lease_id}-{batch.seqs[place]}",
        seq=batch.seqs[place],
        key=batch.keys[place],
        data=decoded(batch.data[place]),
        headers=decoded(batch.headers[place] or "null"),
        created_at=batch.created_at[place],
        attempt=batch.attempts[place] if batch.attempts else 1,
    )
