"""Routes of a consumer's position: peek, seek, push status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from litestar.params import JSONBody, QueryParameter
from msgspec import structs

from headrace.admin.consumers import peek_page
from headrace.model.ack_ids import AckIds
from headrace.model.records import PeekedMessage
from headrace.server.access import methods
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.routes.context import Context
from headrace.server.routes.paging import PAGE_SIZE, SeqPage
from headrace.server.routes.parameters import ConsumerRef, Sort, StreamRef, with_query
from headrace.server.wire.common import Listed
from headrace.server.wire.inspection import PushStatusAnswer
from headrace.server.wire.messages import Peeked, peeked
from headrace.server.wire.positions import (
    Position,
    PositionAnswer,
    Seek,
)

_PATH = "/streams/{stream:str}/consumers/{consumer:str}"
_END = 2**63 - 1
"""Above all seqs of messages that a page can begin with."""

State = Literal["in_flight", "parked", "blocked", "next"]


class PeekPage(SeqPage, frozen=True, kw_only=True):
    """A page of a consumer's messages."""

    sort: Sort = "seq_asc"
    visible: Annotated[
        bool | None,
        QueryParameter(description="true returns only messages that can be received now, false only the others."),
    ] = None
    states: Annotated[
        list[State] | None,
        QueryParameter(max_items=4, description="Return only messages in these states. By default all."),
    ] = None
    of_each: Annotated[
        bool, QueryParameter(description="Apply `limit` to each state, and order the messages by state.")
    ] = False


@methods.read(
    f"{_PATH}/messages",
    summary="Peek at a consumer's messages",
    tags=["Consumers"],
    description="Returns messages that are in flight, parked, blocked or next, without leasing them: the first ones, or the last"
    f" in descending order. A page ends once its data and headers have {PAGE_SIZE}. The next ones are searched in 10,000 messages"
    " of the stream.",
)
@with_query
async def peek(context: Context, stream: StreamRef, consumer: ConsumerRef, asked: PeekPage) -> Listed[Peeked]:
    limit, visible, of_each = asked.limit, asked.visible, asked.of_each
    cached = await context.consumer(stream, consumer, "consume")
    sealing = await context.engine.ack_ids()
    back = asked.before is not None
    descending = asked.sort == "seq_desc" and not of_each
    downwards = descending != back
    place = asked.before if back else asked.after
    read = await peek_page(
        context.reading,
        cached.stream.name,
        cached.number,
        limit=limit,
        above=0 if downwards or place is None else place,
        below=None if not downwards else _END if place is None else place,
        states=asked.states,
    )
    now = datetime.now(UTC)
    messages = [message for message in read if visible is None or visible == _visible(message, now)]
    end = _end(read, downwards) if read.more else None
    if not of_each:
        messages, end = _page(messages, _known_up_to(read, limit, downwards, end), limit, downwards)
        if back:
            messages.reverse()
    first, last = (messages[0].seq, messages[-1].seq) if messages else (None, None)
    if of_each and messages:
        first, last = min(message.seq for message in messages), max(message.seq for message in messages)
    return Listed(
        [peeked(message, cached.stream.id, _ack_id(cached, message, sealing)) for message in messages],
        last if back else end,
        end if back else first if asked.after is not None else None,
    )


@methods.change(f"{_PATH}/seek", summary="Move a consumer to a position", tags=["Consumers"])
async def seek(context: Context, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[Seek]) -> PositionAnswer:
    """Moves the consumer. It reads on at the first message at or above `to`. Leases with messages above that end, and
    after a move forward all leases. A move back loses nothing that waits below `to`. Dead letters stay. With `dry_run`
    nothing changes, and the answer says what would: `again` messages are redelivered, and `skipped` ones are passed
    over."""
    if data.dry_run:
        cached = await context.consumer(stream, consumer, "consume")
        preview = await context.reading.seek_preview(cached.stream.name, cached.name, data.target())
        return PositionAnswer(Position(**structs.asdict(preview)))
    cached = await context.consumer(stream, consumer, "admin")
    position = await context.admin.seek(cached.stream.name, cached.name, data.target())
    return PositionAnswer(Position(position=position))


@methods.read(f"{_PATH}/push", summary="Read what a push consumer does", tags=["Consumers"])
async def read_push_status(context: Context, stream: StreamRef, consumer: ConsumerRef) -> PushStatusAnswer:
    """Returns the circuit breaker, the last answers of the endpoint, and how many messages the servers that run now have sent. 422
    for a consumer that is not a push consumer."""
    cached = await context.consumer(stream, consumer, "consume")
    status = await context.admin.push_status(cached.stream.name, cached.name)
    return PushStatusAnswer(structs.replace(status, url=await context.visible_url(cached.stream.name, status.url)))


def _visible(message: PeekedMessage, now: datetime) -> bool:
    return message.state == "next" or (message.state == "parked" and (message.until is None or message.until <= now))


def _ack_id(consumer: CachedConsumer, message: PeekedMessage, sealing: AckIds) -> str | None:
    if message.lease_id is None or message.held is None:
        return None
    return sealing.seal(consumer.number, message.lease_id, message.seq, message.attempts, message.held)


def _end(read: Sequence[PeekedMessage], downwards: bool) -> int:
    """The seq of the message that was read last."""
    return (min if downwards else max)(message.seq for message in read)


def _known_up_to(read: Sequence[PeekedMessage], limit: int, downwards: bool, end: int | None) -> int | None:
    """The seq up to which a peek has read all messages. None if it has read all there are.

    `end` is the seq at which the size of the page has ended it. Otherwise each state ends at `limit` messages.
    """
    by_state: dict[str, list[PeekedMessage]] = {}
    for message in read:
        by_state.setdefault(message.state, []).append(message)
    ends = [_end(messages, downwards) for messages in by_state.values() if len(messages) >= limit]
    return (max if downwards else min)([*ends, *([] if end is None else [end])], default=None)


def _page(
    found: list[PeekedMessage], end: int | None, limit: int, downwards: bool
) -> tuple[list[PeekedMessage], int | None]:
    """The messages of a page, in the order in which they are read, and the place at which the page ends. It is None
    if there are no more.
    """
    found = sorted(found, key=lambda message: message.seq, reverse=downwards)
    known = [message for message in found if end is None or (message.seq >= end if downwards else message.seq <= end)]
    return known[:limit], known[limit - 1].seq if len(known) > limit else end
