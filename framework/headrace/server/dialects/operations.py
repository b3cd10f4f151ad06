"""Operations that all dialects share: check the caller, receive, ack and nack."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from headrace.admin.validation import argument
from headrace.model.errors import HeadraceError, UnknownConsumer, UnknownStream
from headrace.model.outcomes import Failure
from headrace.model.specs import Backoff
from headrace.model.text.error_text import given_error
from headrace.server.access.origins import consuming_get
from headrace.server.access.scopes import Need
from headrace.server.data_plane.delivery_bodies import (
    Nack,
    ReceiveOptions,
    Settle,
    ack_ids_field,
    ack_ids_of,
    decode_nack,
    decode_settle,
)
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.data_plane.publish_bodies import delay_in_seconds, read_messages_of_streams
from headrace.server.data_plane.receive_request import NOTHING, ClientGone, Share
from headrace.server.data_plane.registry import CachedConsumer, CachedStream
from headrace.server.decoding.jobs import RECEIVED
from headrace.server.engine import Engine
from headrace.server.errors import Problem, StaleAckIds, forget_frames, problem_of
from headrace.server.http import HEAD, Request, Response
from headrace.server.lookups import Lookups, UnknownWithinScopes
from headrace.server.transport.limits import Limits

Find = Callable[[Request], Awaitable[CachedConsumer]]
"""Returns the consumer that a request names. Raises unless the caller may receive from it."""

_NOT_FOUND = (UnknownConsumer, UnknownStream, UnknownWithinScopes)
"""Errors of look-ups that a deleted consumer causes, too."""

SUCCESS = Response(200, b'{"success":true}')


class Operations:
    """Operations on consumers that the caller may use.

    Args:
        engine: publishes, leases and settles.
        limits: counts waiting requests separately.
    """

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine = engine
        self._lookups = Lookups(engine)
        self._limits = limits

    async def stream(self, request: Request, need: Need) -> CachedStream:
        """Return the stream that a request names. Raises unless the caller has the scope."""
        return await self._lookups.stream(request.caller, request.names[0], need)

    async def consumer(self, request: Request) -> CachedConsumer:
        """Return the consumer that a request names, of the stream that it names. Raises unless the
        caller may receive from it."""
        stream, name = request.names
        return await self._lookups.consumer(request.caller, stream, name, "consume")

    async def consumer_anywhere(self, request: Request) -> CachedConsumer:
        """Return the consumer that a request names without its stream. Raises unless the caller may
        receive from it."""
        return await self._lookups.consumer_anywhere(request.caller, request.names[0], "consume")

    async def publish(self, request: Request, stream: CachedStream, *, received: bool = False) -> int:
        """Publish the messages of a request. Returns how many were published. Raises errors that `error_response` converts.

        Args:
            received: whether they may have the fields of received messages, which are ignored.
        """
        caller, head = self._limits.name_of(request.scope), RECEIVED if received else None
        return (await self._limits.decoding.publish(caller, request.pieces, self.engine, stream, head)).count

    async def publish_to_streams(self, request: Request) -> int:
        """Publish the messages of a request to the streams that they name, all or none. Returns how many were published.
        Raises errors that `error_response` converts."""
        found: dict[str, CachedStream] = {}
        by_stream: dict[CachedStream, Incoming] = {}
        for number, (ref, message) in enumerate(read_messages_of_streams(request.body)):
            if ref not in found:
                try:
                    found[ref] = await self._lookups.stream(request.caller, ref, "publish")
                except UnknownStream as error:
                    problem = problem_of(error)
                    problem.validation_errors = {f"messages[{number}].stream": [str(problem)]}
                    raise problem from error
            by_stream.setdefault(found[ref], Incoming()).extend(message)
        with argument("messages"):
            return await self.engine.publish_to_streams(list(by_stream.items()))

    async def receive(self, request: Request, consumer: CachedConsumer, options: ReceiveOptions) -> Share | None:
        """Settle the earlier messages that a request names, and lease others. None if the client disconnects before the
        answer. The messages are then released. HEAD settles and leases none."""
        if HEAD in request.scope:
            return NOTHING
        if (violation := consuming_get(request.scope)) is not None and request.caller.via == "open":
            raise self._limits.refuse(violation)
        stale = await self._settle_earlier(consumer, options) if options.settles else None
        try:
            with self._limits.wait(request.scope):
                share = await self.engine.receive(
                    consumer, options.batch_size, options.wait_for, request.wait_for_disconnect
                )
        except ClientGone as error:
            forget_frames(error)
            return None
        if share.lease is not None and await request.is_disconnected():
            await self.engine.release(consumer, share)
            return None
        return share if stale is None else msgspec.structs.replace(share, stale=stale)

    async def _settle_earlier(self, consumer: CachedConsumer, options: ReceiveOptions) -> list[str]:
        """Ack and nack the messages that a receive request names, as `ack` and `nack` do. Returns the ids that changed
        nothing. If an id is invalid, nothing is settled."""
        ack_ids, nack_ids = options.ack_ids or [], options.nack_ids or []
        if nack_ids:
            with argument("nack_ids"):
                (await self.engine.ack_ids()).open_all(nack_ids)
        with argument("ack_ids"):
            stale = await self.engine.settle(consumer, ack_ids)
        return stale + await self._nack(consumer, nack_ids, Nack()) if nack_ids else stale

    async def ack(self, request: Request, find: Find) -> Response:
        """Ack the messages of a request. `find` returns the consumer that it names."""
        try:
            consumer = await find(request)
        except _NOT_FOUND as error:
            return await self.settle_deleted(request, error)
        body = decode_settle(request.body)
        with argument(ack_ids_field(body)):
            return settled(body, await self.engine.settle(consumer, ack_ids_of(body), strict=body.strict))

    async def nack(self, request: Request, find: Find) -> Response:
        """Nack the messages of a request. `find` returns the consumer that it names.

        Without a delay they are delivered again at once, or after the consumer's backoff if it has
        one of its own.
        """
        try:
            consumer = await find(request)
        except _NOT_FOUND as error:
            return await self.settle_deleted(request, error)
        body = decode_nack(request.body)
        ack_ids = ack_ids_of(body)
        with argument(ack_ids_field(body)):
            return settled(body, await self._nack(consumer, ack_ids, body))

    async def extend(self, request: Request, find: Find) -> Response:
        """Extend the leases of a request. `find` returns the consumer that it names."""
        try:
            consumer = await find(request)
        except _NOT_FOUND as error:
            return await self.settle_deleted(request, error)
        body = decode_settle(request.body)
        with argument(ack_ids_field(body)):
            return settled(body, await self.engine.extend(consumer, ack_ids_of(body)))

    async def settle_deleted(self, request: Request, error: HeadraceError) -> Response:
        """Answer a request whose consumer doesn't exist. If the messages are those of a deleted consumer, their
        ack ids are stale, like any whose leases were lost. Otherwise raises `error`.

        For a token for some streams, messages of consumers elsewhere are stale, too. It can't settle them, and
        doesn't learn whether their consumer still exists.
        """
        try:
            body = decode_nack(request.body)
            ack_ids = ack_ids_of(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Problem):
            raise error from None
        if not ack_ids:
            raise error
        streams = request.caller.streams("consume")
        if not await self.engine.are_of_deleted_consumer(ack_ids, streams):
            raise error
        stale = list(dict.fromkeys(ack_ids))
        self.engine.counts.stale += len(stale)
        return settled(body, stale)

    async def _nack(self, consumer: CachedConsumer, ack_ids: Sequence[str], body: Nack) -> list[str]:
        """Nack messages as a body says. Returns the ids that changed nothing."""
        delay = None if body.delay_ms is None else delay_in_seconds(body.delay_ms)
        if body.snooze:
            return await self._snooze(consumer, ack_ids, body, delay)
        if delay is None and consumer.spec.backoff != Backoff():
            return await self._nack_with_backoff(consumer, ack_ids, body)
        failure = Failure("retry", delay, given_error(body.error))
        return await self.engine.settle(consumer, ack_ids, failure, strict=body.strict)

    async def _snooze(
        self, consumer: CachedConsumer, ack_ids: Sequence[str], body: Nack, delay: float | None
    ) -> list[str]:
        if delay is None or body.error is not None:
            raise Problem(
                422, "invalid", "A snooze needs `delay_ms` and has no `error`. Leave out `snooze` to count a failure.",
                validation_errors={"snooze": ["needs delay_ms, and no error"]},
            )  # fmt: skip
        return await self.engine.settle(consumer, ack_ids, Failure("release", delay), strict=body.strict)

    async def _nack_with_backoff(self, consumer: CachedConsumer, ack_ids: Sequence[str], body: Nack) -> list[str]:
        codec = await self.engine.ack_ids()
        by_attempt: dict[int, list[str]] = {}
        for ack_id in ack_ids:
            by_attempt.setdefault(codec.open(ack_id).attempt, []).append(ack_id)
        stale: list[str] = []
        for attempt, ids in by_attempt.items():
            failure = Failure("retry", consumer.spec.backoff.delay(attempt, random.random()), given_error(body.error))
            stale += await self.engine.settle(consumer, ids, failure, strict=body.strict)
        return stale


def settled(body: Settle, stale: list[str]) -> Response:
    """Return the response to a settle request. Raises `StaleAckIds` if it is strict and leases were lost."""
    if stale and body.strict:
        raise StaleAckIds(stale)
    return SUCCESS
