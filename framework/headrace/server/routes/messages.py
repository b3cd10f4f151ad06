"""Routes of a stream's messages: list, read the latest of a key, publish again."""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import msgspec
from litestar.params import JSONBody, QueryParameter
from msgspec.structs import asdict, replace

from headrace import store
from headrace.admin.messages import messages_page, publish_by_hand, standings
from headrace.admin.validation import MAX_ANSWER_BYTES, of_key, selection_of
from headrace.model.keys import check_key
from headrace.model.messages.payloads import encode_headers
from headrace.model.messages.scheduled import ScheduledMessage, ScheduledPlace
from headrace.model.records import Erasure, StoredMessage
from headrace.model.text.error_text import MAX_ERROR
from headrace.server.access import methods
from headrace.server.errors import Problem, invalid
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.paging import HIGHEST, PAGE_SIZE, SeqPage, TextPage, page
from headrace.server.routes.parameters import ExactKey, Filter, KeyPattern, KeyRef, Sort, StreamRef, Where, with_query
from headrace.server.slashes import unmarked
from headrace.server.wire.common import Listed
from headrace.server.wire.messages import (
    ConsumerStanding,
    DataText,
    Erase,
    Erased,
    ErasedAnswer,
    Message,
    MessageByHand,
    Published,
    PublishedAnswer,
    PublishedByHand,
    PublishedByHandAnswer,
    Republish,
)

_MOST_ERASURES = MAX_ANSWER_BYTES // (4 * MAX_ERROR)
"""The largest number of erased messages of a page. So many of the longest reasons have the size of a page."""

SEARCH_TIME = 3.0
"""Seconds after which a search for the latest message of a key ends, at the end of a step."""

Before = Annotated[int | None, QueryParameter(ge=1, lt=HIGHEST, description="Search only messages with a smaller seq.")]


class MessagePage(SeqPage, frozen=True, kw_only=True):
    """A page of the list of messages."""

    sort: Sort = "seq_asc"
    filter: Filter = None
    key_pattern: KeyPattern = None
    key: ExactKey = None
    where: Where = None
    start_seq: Annotated[
        int | None, QueryParameter(ge=1, le=2**63 - 1, description="Return only messages from this seq on.")
    ] = None


@methods.read(
    "/streams/{stream:str}/messages",
    summary="List messages",
    tags=["Messages"],
    description="Returns the first messages, or the newest in descending order."
    f" A page ends once its data and headers have {PAGE_SIZE}, or after about a second, even with no message yet.",
)
@with_query
async def list_messages(context: Context, stream: StreamRef, asked: MessagePage) -> Listed[Message]:
    cached = await context.stream(stream, "consume")
    newest, after, before = asked.sort == "seq_desc", asked.after, asked.before
    # What comes before a place of an ascending list has lower seqs, and is read downwards from there.
    above, below = (before, after) if newest else (after, before)
    filters = of_key(_one_of(asked.filter, asked.key_pattern), asked.key)
    chosen = selection_of(filter=filters, where=asked.where, start_seq=asked.start_seq)
    if above is not None:
        chosen = replace(chosen, start_seq=max(asked.start_seq or 1, above + 1))
    if below is not None:
        chosen = replace(chosen, end_seq=below - 1)
    messages = await messages_page(
        context.reading, cached.name, chosen, limit=asked.limit, newest=newest == (before is None)
    )
    if newest:
        messages.reverse()
    return page(messages, lambda message: message.seq, asked, show=lambda message: Message.of(message, cached.id))


@methods.read("/streams/{stream:str}/messages/{key:str}", summary="Read the latest message of a key", tags=["Messages"])
async def read_message(context: Context, stream: StreamRef, key: KeyRef, before: Before = None) -> Message:
    """Returns the latest message of a key. 404 if the key has none. Without an index of keys, a search that takes too long
    ends with 409 and the seq `before` which to continue."""
    cached = await context.stream(stream, "consume")
    return Message.of(await _latest(context, cached.name, unmarked(key), before), cached.id)


@methods.read(
    "/streams/{stream:str}/messages/{key:str}/consumer_info",
    summary="Read the state of a key in each consumer",
    tags=["Messages"],
)
async def read_standing(
    context: Context, stream: StreamRef, key: KeyRef, before: Before = None
) -> Listed[ConsumerStanding]:
    """Returns the state of the key's latest message in every consumer of the stream. It is searched as by `GET
    /streams/{stream}/messages/{key}`."""
    cached = await context.stream(stream, "consume")
    message = await _latest(context, cached.name, unmarked(key), before)
    states = await standings(context.reading, cached.name, message)
    return Listed([ConsumerStanding.of(one, message.seq) for one in states])


@methods.change("/streams/{stream:str}/republish", summary="Republish messages to a stream", tags=["Messages"])
async def republish(context: Context, stream: StreamRef, data: JSONBody[Republish]) -> PublishedAnswer:
    """Publishes the messages that match to another stream or the same one, all or none. They
    are new messages there, in the same order."""
    cached = await context.stream(stream, "consume")
    target = await context.neighbour(data.target, "publish")
    criteria = asdict(data)
    del criteria["target"]
    count = await context.admin.republish(cached.name, target.name, **criteria)
    return PublishedAnswer(Published(count))


@methods.change("/streams/{stream:str}/publish", summary="Publish a message by hand", tags=["Messages"])
async def publish(
    request: AnyRequest, context: Context, stream: StreamRef, data: JSONBody[MessageByHand]
) -> PublishedByHandAnswer:
    """Publishes one message with an entry in the audit log, for people. Programs publish with `POST
    /streams/{stream}/messages`, which is faster and leaves no entry."""
    cached = await context.stream(stream, "publish")
    headers = encode_headers(data.headers)
    text = msgspec.json.decode(await request.body(), type=DataText).data
    seq = await publish_by_hand(context.admin, cached.name, data.key, bytes(text).decode(), headers)
    context.engine.published(cached.name)
    return PublishedByHandAnswer(PublishedByHand(seq))


@methods.read(
    "/streams/{stream:str}/scheduled",
    summary="List scheduled messages",
    tags=["Messages"],
    description="Returns the messages that are published later, in the order in which they are due."
    f" A page ends once its data and headers have {PAGE_SIZE}.",
)
@with_query
async def list_scheduled(context: Context, stream: StreamRef, asked: TextPage) -> Listed[ScheduledMessage]:
    cached = await context.stream(stream, "consume")
    messages = await store.scheduled_messages(
        context.engine.app.database,
        cached.name,
        **asdict(asked.at(ScheduledPlace.parse)),
        contents=store.Contents(max_bytes=MAX_ANSWER_BYTES, raw=True),
    )
    return page(messages, lambda message: str(message.place), asked)


@methods.change("/streams/{stream:str}/erasures", summary="Erase messages", tags=["Messages"])
async def erase(context: Context, stream: StreamRef, data: JSONBody[Erase]) -> ErasedAnswer:
    """Deletes messages for good: their contents, their keys, and the dead letters that are of them. No consumer gets
    them any more. Who did it, when and why stays."""
    cached = await context.stream(stream, "admin")
    erased = await context.admin.erase(cached.name, data.seqs, reason=data.reason)
    context.engine.forget_messages()
    return ErasedAnswer(Erased(erased))


@methods.read(
    "/streams/{stream:str}/erasures",
    summary="List erased messages",
    tags=["Messages"],
    description=f"Returns what is left of erased messages, in seq order. A page ends after {_MOST_ERASURES} of them.",
)
@with_query
async def list_erasures(context: Context, stream: StreamRef, asked: SeqPage) -> Listed[Erasure]:
    cached = await context.stream(stream, "admin")
    limit, above = min(asked.limit, _MOST_ERASURES), asked.after or 0
    erasures = await store.erasures(
        context.engine.app.database, cached.name, limit=limit, above=above, below=asked.before
    )
    return page(erasures, lambda erasure: erasure.seq, asked)


def _one_of(filters: list[str] | None, older: list[str] | None) -> list[str] | None:
    """Return the filters under either name. Raises a `Problem` if both are given and differ."""
    if filters is not None and older is not None and filters != older:
        text = "filter and key_pattern are the same parameter. Give only filter."
        raise invalid(text, "key_pattern", "It differs from filter, which is its newer name.")
    return older if filters is None else filters


async def _latest(context: Context, stream: str, key: str, before: int | None) -> StoredMessage:
    """Return the latest message of a key, of those before a seq if one is given.

    Raises:
        Problem: there is none (404), or the search takes longer than `SEARCH_TIME` and has to be continued (409).
    """
    until = monotonic() + SEARCH_TIME
    while True:
        chosen = store.SeqRange(filters=(check_key(key),), end_seq=None if before is None else before - 1)
        messages = await messages_page(context.reading, stream, chosen, limit=1, newest=True)
        if messages:
            return messages[0]
        if not messages.more:
            raise Problem(404, "unknown_key", f"The stream {stream!r} has no message with the key {key!r}.")
        before = messages.reached
        if monotonic() > until:
            raise Problem(
                409,
                "not_reached",
                f"The key {key!r} is not among the messages from seq {before} on, and earlier ones were not searched. Continue with"
                f" before={before}, or set `index_keys` of the stream.",
                more={"before": before},
            )
