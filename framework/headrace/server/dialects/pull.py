"""Dialect B: pull consumers by name, for captured changes.

`…/http_pull_consumers/{name}/receive` by GET and POST, and `ack` and `nack` by POST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.server.data_plane.bodies import Nack, Settle, read_receive
from headrace.server.data_plane.registry import KnownConsumer
from headrace.server.transport.http import Call, Endpoint, Reply
from headrace.server.wire.dialect_answers import changes

if TYPE_CHECKING:
    from headrace.server.data_plane.endpoints import DataPlane

PREFIX = "http_pull_consumers"

_settle = msgspec.json.Decoder(Settle)
_nack = msgspec.json.Decoder(Nack)


class Pull:
    """The endpoints of dialect B.

    Args:
        data: the shared endpoints, which do the work.
    """

    def __init__(self, data: DataPlane) -> None:
        self._data = data

    def find(self, method: str, verb: str) -> Endpoint | None:
        """Return the endpoint for the part of the path after the consumer's name."""
        if verb == "receive" and method in ("GET", "POST"):
            return self.receive
        if method == "POST":
            return {"ack": self.ack, "nack": self.nack}.get(verb)
        return None

    async def receive(self, call: Call) -> Reply | None:
        """Return messages as changes or rows. It takes `batch_size` and `wait_for` like dialect A."""
        consumer = await self._consumer(call)
        share = await self._data.received(call, consumer, *read_receive(call))
        return None if share is None else Reply(200, changes(consumer, share))

    async def ack(self, call: Call) -> Reply:
        """Settle messages as done."""
        return await self._data.acked(await self._consumer(call), _settle.decode(call.body))

    async def nack(self, call: Call) -> Reply:
        """Settle messages as failed. They are delivered again."""
        return await self._data.nacked(await self._consumer(call), _nack.decode(call.body))

    async def _consumer(self, call: Call) -> KnownConsumer:
        return await anywhere(self._data, call)


async def anywhere(data: DataPlane, call: Call) -> KnownConsumer:
    """Return the consumer that a call names, of any stream. Raises unless the caller may receive from it."""
    consumer = await data.engine.consumer_anywhere(call.names[0])
    await data.allow(call, "consume", consumer.stream.name)
    return consumer
