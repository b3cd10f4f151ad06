"""Manual acknowledgement through a server: receive, ack, nack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.client.base import Base, Listed, Message, decoded
from headrace.client.errors import StaleAckIds
from headrace.client.request import post
from headrace.model.durations import Duration, seconds
from headrace.model.errors import InvalidInput
from headrace.model.records import Received


class _Delivery(msgspec.Struct):
    ack_id: str
    message: Message


class ManualAcks(Base):
    """The calls for manual acknowledgement. See `headrace.admin`."""

    async def receive(self, stream: str, name: str, *, limit: int = 1, wait: float = 0.0) -> list[Received]:
        """Lease messages for the consumer's `ack_wait`. Each is to be acked or nacked."""
        if not 0 <= wait <= 3600:
            raise InvalidInput(f"wait={wait} must be from 0 to 3,600 seconds.")
        request = post(
            "streams", stream, "consumers", name, "receive",
            batch_size=limit, wait_for=round(wait * 1000) or None, wait=wait,
        )  # fmt: skip
        return [_received(one) for one in (await self._ask(request, Listed[_Delivery])).data]

    async def ack(self, stream: str, name: str, ack_ids: Sequence[str]) -> list[str]:
        """Settle messages as done. Returns the ids that changed nothing, because their lease was lost."""
        return await self._settle(stream, name, "ack", ack_ids)

    async def nack(
        self, stream: str, name: str, ack_ids: Sequence[str], *, delay: Duration | None = None, error: str | None = None
    ) -> list[str]:
        """Settle messages as failed. They are delivered again after `delay`. Returns the ids
        that changed nothing."""
        pause = None if delay is None else seconds(delay, "delay") * 1000
        return await self._settle(stream, name, "nack", ack_ids, delay_ms=pause, error=error)

    async def _settle(self, stream: str, name: str, verb: str, ack_ids: Sequence[str], **more: Any) -> list[str]:
        try:
            await self._send(
                post("streams", stream, "consumers", name, verb, ack_ids=list(ack_ids), strict=True, **more)
            )
        except StaleAckIds as error:
            return error.stale
        return []


def _received(delivery: _Delivery) -> Received:
    message = delivery.message
    return Received(
        ack_id=delivery.ack_id, seq=message.seq, key=message.key, data=decoded(message.data), headers=decoded(message.headers),
        created_at=message.inserted_at, attempt=message.attempt,
    )  # fmt: skip
