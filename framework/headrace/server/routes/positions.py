"""Routes of a consumer's position: peek, seek, replay, pause, resume."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter

from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.ack_ids import AckIds
from headrace.model.records import PeekedMessage
from headrace.server.access.scopes import Access
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.engine import Engine
from headrace.server.routes.context import AnyRequest, RouteContext
from headrace.server.routes.paging import PAGE_SIZE, AfterSeq, size_of
from headrace.server.routes.parameters import ConsumerRef, Limit, Sort, StreamRef
from headrace.server.wire.common import Listed
from headrace.server.wire.consumer_answers import Consumer
from headrace.server.wire.messages import Choice, Peeked, peeked
from headrace.server.wire.positions import (
    Pause,
    Position,
    PositionAnswer,
    Replayed,
    ReplayedAnswer,
    Seek,
)

_PATH = "/streams/{stream:str}/consumers/{consumer:str}"


def routes(engine: Engine, access: Access) -> Sequence[HTTPRouteHandler]:
    """Return the handlers."""
    context = RouteContext(engine, access)

    @get(
        f"{_PATH}/messages", summary="Peek at a consumer's messages", tags=["Consumers"],
        description="Returns messages that are in flight, parked, blocked or next, without leasing them. A page ends once its data"
        f" and headers have {PAGE_SIZE}. In descending order there is no next page.",
    )  # fmt: skip
    async def peek(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, limit: Limit = 100, sort: Sort = "seq_asc",
        visible: Annotated[
            bool | None, QueryParameter(description="true returns only messages that can be received now, false only the others.")
        ] = None,
        of_each: Annotated[bool, QueryParameter(description="Apply `limit` to each state, and order the messages by state.")] = False,
        after: AfterSeq = None,
    ) -> Listed[Peeked]:  # fmt: skip
        cached = await context.consumer(request, stream, consumer, "consume")
        sealing = await engine.ack_ids()
        now = datetime.now(UTC)
        read = await context.raw_messages.peek(cached, limit, after or 0)
        found = [message for message in read if visible is None or visible == _visible(message, now)]
        last = None
        if not of_each:
            found = sorted(found, key=lambda message: message.seq, reverse=sort == "seq_desc")
            if sort == "seq_asc":
                found, last = _page(found, _known_up_to(read, limit), limit)
        return Listed(
            [
                peeked(message, cached.stream.id, _ack_id(cached, message, sealing))
                for message in found[: None if of_each else limit]
            ],
            last,
        )

    @post(f"{_PATH}/seek", summary="Move a consumer to a position", tags=["Consumers"], status_code=200)
    async def seek(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Seek]
    ) -> PositionAnswer:
        """Moves the consumer. Its next message is the first one at or above `to`. Messages in flight lose
        their leases. Dead letters stay."""
        cached = await context.consumer(request, stream, consumer, "admin")
        return PositionAnswer(Position(await context.admin.seek(cached.stream.name, cached.name, data.place())))

    @post(f"{_PATH}/replay", summary="Replay messages", tags=["Consumers"], status_code=200)
    async def replay(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Choice | None] = None
    ) -> ReplayedAnswer:
        """Delivers earlier messages again, before any new ones. They must match the request and
        the consumer's own filters."""
        cached = await context.consumer(request, stream, consumer, "admin")
        choice = data or Choice()
        count = await context.admin.replay(
            cached.stream.name, cached.name, filter=choice.filter, where=choice.where, start_seq=choice.start_seq,
            end_seq=choice.end_seq, start_time=choice.start_time, end_time=choice.end_time, dry_run=choice.dry_run,
        )  # fmt: skip
        return ReplayedAnswer(Replayed(count))

    @post(f"{_PATH}/pause", summary="Pause a consumer", tags=["Consumers"], status_code=200)
    async def pause(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Pause | None] = None
    ) -> Consumer:
        """Stops deliveries until the given time, or until the consumer is resumed. Messages in
        flight can still be settled."""
        cached = await context.consumer(request, stream, consumer, "admin")
        await context.admin.pause(cached.stream.name, cached.name, None if data is None else data.until)
        return Consumer.of(await context.admin.consumer(cached.stream.name, cached.name))

    @post(f"{_PATH}/resume", summary="Resume a consumer", tags=["Consumers"], status_code=200)
    async def resume(request: AnyRequest, stream: StreamRef, consumer: ConsumerRef) -> Consumer:
        """Ends a pause. Waiting receivers are woken at once."""
        cached = await context.consumer(request, stream, consumer, "admin")
        await context.admin.resume(cached.stream.name, cached.name)
        return Consumer.of(await context.admin.consumer(cached.stream.name, cached.name))

    return [peek, seek, replay, pause, resume]


def _visible(message: PeekedMessage, now: datetime) -> bool:
    return message.state == "next" or (message.state == "parked" and (message.until is None or message.until <= now))


def _ack_id(consumer: CachedConsumer, message: PeekedMessage, sealing: AckIds) -> str | None:
    if message.lease_id is None or message.held is None:
        return None
    return sealing.seal(consumer.number, message.lease_id, message.seq, message.attempts, message.held)


def _known_up_to(read: Sequence[PeekedMessage], limit: int) -> int | None:
    """The seq up to which a peek has read all messages. None if it has read all there are."""
    by_state: dict[str, list[int]] = {}
    for message in read:
        by_state.setdefault(message.state, []).append(message.seq)
    ends = [max(seqs) for seqs in by_state.values() if len(seqs) >= limit]
    if sum(map(size_of, read)) >= MAX_ANSWER_BYTES:
        ends.append(max(message.seq for message in read))
    return min(ends, default=None)


def _page(found: list[PeekedMessage], end: int | None, limit: int) -> tuple[list[PeekedMessage], int | None]:
    """The messages of a page, and the place after which the next one begins."""
    known = [message for message in found if end is None or message.seq <= end]
    return known[:limit], known[limit - 1].seq if len(known) > limit else end
