"""The data plane of the API: publish, receive, ack, nack, extend. Clients call these for every
batch, and everything else rarely.

An endpoint takes a `Call` and returns its answer. Routes are few, so they are found by splitting
the path. The dialects differ only in names, so their endpoints are made from the same parts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.outcomes import Failure
from headrace.model.specs import Backoff
from headrace.server.access.scopes import Access, Need
from headrace.server.data_plane.bodies import (
    Nack,
    Settle,
    delay_of,
    named,
    read_messages,
    read_receive,
    told,
)
from headrace.server.data_plane.receive_request import ClientGone, Share
from headrace.server.data_plane.registry import KnownConsumer
from headrace.server.dialects import consume, pull
from headrace.server.dialects.consume import Consume
from headrace.server.dialects.pull import Pull
from headrace.server.engine import Engine
from headrace.server.errors import StaleAckIds
from headrace.server.transport.http import Call, Endpoint, Reply
from headrace.server.transport.limits import Limits

SUCCESS = Reply(200, b'{"success":true}')

_settle = msgspec.json.Decoder(Settle)
_nack = msgspec.json.Decoder(Nack)


class DataPlane:
    """The endpoints that all dialects share.

    Args:
        engine: publishes, leases and settles.
        access: checks callers.
        limits: counts waiting requests separately.
    """

    def __init__(self, engine: Engine, access: Access, limits: Limits) -> None:
        self.engine = engine
        self._limits = limits
        self._access = access
        self._verbs: dict[str, Endpoint] = {
            "receive": self.receive,
            "messages": self.receive,
            "ack": self.ack,
            "nack": self.nack,
            "extend": self.extend,
        }
        self.pull = Pull(self)
        self.consume = Consume(self)
        self._dialects = {pull.PREFIX: self.pull.find, consume.PREFIX: self.consume.find}

    def find(self, method: str, path: str) -> tuple[Endpoint, tuple[str, ...]] | None:
        """Return the endpoint for a path and the names in the path. None if the path isn't part
        of the data plane."""
        parts = path.split("/")
        if len(parts) < 5 or parts[1] not in ("v1", "api"):
            return None
        if len(parts) == 5 and parts[2] in self._dialects:
            endpoint = self._dialects[parts[2]](method, parts[4])
            return None if endpoint is None else (endpoint, (parts[3],))
        if parts[2] != "streams":
            return None
        if len(parts) == 5 and parts[4] == "messages" and method == "POST":
            return self.publish, (parts[3],)
        if (
            len(parts) == 7
            and parts[4] == "consumers"
            and (method == "POST" or (method, parts[6]) == ("GET", "receive"))
        ):
            verb = self._verbs.get(parts[6])
            return None if verb is None else (verb, (parts[3], parts[5]))
        return None

    async def allow(self, call: Call, need: Need, stream: str | None) -> None:
        """Raise unless the caller has the scope."""
        if not self._access.open:
            await self._access.check(call.authorization, need, stream)

    # --- dialect A

    async def publish(self, call: Call) -> Reply:
        """`POST …/streams/{s}/messages`."""
        try:
            stream = await self.engine.stream(call.names[0])
        except UnknownStream:
            await self.allow(call, "publish", call.names[0])
            raise
        await self.allow(call, "publish", stream.name)
        count = await self.engine.publish(stream, read_messages(call.body))
        return Reply(200, b'{"data":{"published":%d}}' % count)

    async def receive(self, call: Call) -> Reply | None:
        """`GET` or `POST …/consumers/{c}/receive`, and `POST …/consumers/{c}/messages`."""
        consumer = await self._consumer(call)
        batch_size, wait_for = read_receive(call)
        share = await self.received(call, consumer, batch_size, wait_for)
        return None if share is None else Reply(200, told(share))

    async def ack(self, call: Call) -> Reply:
        """`POST …/consumers/{c}/ack`."""
        return await self.acked(await self._consumer(call), _settle.decode(call.body))

    async def nack(self, call: Call) -> Reply:
        """`POST …/consumers/{c}/nack`."""
        return await self.nacked(await self._consumer(call), _nack.decode(call.body))

    async def extend(self, call: Call) -> Reply:
        """`POST …/consumers/{c}/extend`."""
        consumer, asked = await self._consumer(call), _settle.decode(call.body)
        return _settled(asked, await self.engine.extend(consumer, named(asked)))

    async def _consumer(self, call: Call) -> KnownConsumer:
        try:
            consumer = self.engine.known(*call.names) or await self.engine.consumer(*call.names)
        except (UnknownStream, UnknownConsumer):
            await self.allow(call, "consume", call.names[0])  # doesn't reveal whether it exists
            raise
        await self.allow(call, "consume", consumer.stream.name)
        return consumer

    # --- shared by the dialects

    async def received(self, call: Call, consumer: KnownConsumer, batch_size: int, wait_for: float) -> Share | None:
        """Lease messages for a client. None if it disconnects before the answer. The messages
        are then released."""
        try:
            with self._limits.wait():
                share = await self.engine.receive(consumer, batch_size, wait_for, call.gone)
        except ClientGone:
            return None
        if share.lease is not None and await call.left():
            await self.engine.give_back(consumer, share)
            return None
        return share

    async def acked(self, consumer: KnownConsumer, asked: Settle) -> Reply:
        """Ack the messages of a request."""
        return _settled(asked, await self.engine.settle(consumer, named(asked), strict=asked.strict))

    async def nacked(self, consumer: KnownConsumer, asked: Nack) -> Reply:
        """Nack the messages of a request.

        Without a delay they are delivered again at once, or after the consumer's backoff if it has
        one of its own.
        """
        ack_ids = named(asked)
        if asked.delay_ms is None and consumer.spec.backoff != Backoff():
            return _settled(asked, await self._back_off(consumer, ack_ids, asked))
        delay = None if asked.delay_ms is None else delay_of(asked.delay_ms)
        failure = Failure("retry", delay, asked.error)
        return _settled(asked, await self.engine.settle(consumer, ack_ids, failure, strict=asked.strict))

    async def _back_off(self, consumer: KnownConsumer, ack_ids: Sequence[str], asked: Nack) -> list[str]:
        sealing = await self.engine.sealing()
        by_attempt: dict[int, list[str]] = {}
        for ack_id in ack_ids:
            by_attempt.setdefault(sealing.open(ack_id).attempt, []).append(ack_id)
        stale: list[str] = []
        for attempt, ids in by_attempt.items():
            failure = Failure("retry", consumer.spec.backoff.delay(attempt, random.random()), asked.error)
            stale += await self.engine.settle(consumer, ids, failure, strict=asked.strict)
        return stale


def _settled(asked: Settle, stale: list[str]) -> Reply:
    if stale and asked.strict:
        raise StaleAckIds(stale)
    return SUCCESS
