"""Routes of a stream's messages: list, read the latest of a key, publish again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter

from headrace import store
from headrace.admin.messages import publish_by_hand
from headrace.admin.validation import MAX_ANSWER_BYTES, of_key
from headrace.model.messages.payloads import encode_headers
from headrace.model.records import Erasure
from headrace.model.text.error_text import MAX_ERROR
from headrace.server.errors import Problem
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.paging import PAGE_SIZE, AfterSeq, BeforeSeq, check_one_place, page
from headrace.server.routes.parameters import ExactKey, Filter, KeyPattern, KeyRef, Limit, Sort, StreamRef, Where
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


@get(
    "/streams/{stream:str}/messages", effect="read", summary="List messages", tags=["Messages"],
    description="Returns the first messages, or the newest in descending order."
    f" A page ends once its data and headers have {PAGE_SIZE}.",
)  # fmt: skip
async def list_messages(
    request: AnyRequest, context: Context, stream: StreamRef, limit: Limit = 100, sort: Sort = "seq_asc", filter: Filter = None,  # noqa: A002
    key_pattern: KeyPattern = None, key: ExactKey = None, where: Where = None,
    start_seq: Annotated[int | None, QueryParameter(ge=1, le=2**63 - 1, description="Return only messages from this seq on.")] = None,
    after: AfterSeq = None, before: BeforeSeq = None,
) -> Listed[Message]:  # fmt: skip
    check_one_place(after, before)
    cached = await context.stream(request, stream, "consume")
    newest = sort == "seq_desc"
    # What comes before a place of an ascending list has lower seqs, and is read downwards from there.
    above, below = (before, after) if newest else (after, before)
    found = await context.raw_messages.messages(
        cached.name, filter=of_key(_one_of(filter, key_pattern), key), where=where, limit=limit, newest=newest == (before is None),
        start_seq=start_seq if above is None else max(start_seq or 1, above + 1),
        end_seq=None if below is None else below - 1,
    )  # fmt: skip
    if newest:
        found.reverse()
    return page(
        found, lambda message: message.seq, after=after, before=before,
        show=lambda message: Message.of(message, cached.id),
    )  # fmt: skip


@get(
    "/streams/{stream:str}/messages/{key:str}",
    effect="read",
    summary="Read the latest message of a key",
    tags=["Messages"],
)
async def read_message(request: AnyRequest, context: Context, stream: StreamRef, key: KeyRef) -> Message:
    """Returns the latest message of a key. 404 if the key has none."""
    cached = await context.stream(request, stream, "consume")
    found = await context.raw_messages.message(cached.name, unmarked(key))
    if found is None:
        raise _unknown_key(cached.name, unmarked(key))
    return Message.of(found, cached.id)


@get(
    "/streams/{stream:str}/messages/{key:str}/consumer_info",
    effect="read",
    summary="Read the state of a key in each consumer",
    tags=["Messages"],
)
async def read_standing(
    request: AnyRequest, context: Context, stream: StreamRef, key: KeyRef
) -> Listed[ConsumerStanding]:
    """Returns the state of the key's latest message in every consumer of the stream."""
    cached = await context.stream(request, stream, "consume")
    found = await context.reading.standing(cached.name, unmarked(key))
    if found is None:
        raise _unknown_key(cached.name, unmarked(key))
    seq, standings = found
    return Listed([ConsumerStanding.of(one, seq) for one in standings])


@post("/streams/{stream:str}/republish", effect="change", summary="Republish messages to a stream", tags=["Messages"],
      status_code=200)  # fmt: skip
async def republish(
    request: AnyRequest, context: Context, stream: StreamRef, data: JSONBody[Republish]
) -> PublishedAnswer:
    """Publishes the messages that match to another stream or the same one, all or none. They
    are new messages there, in the same order."""
    cached = await context.stream(request, stream, "consume")
    target = await context.neighbour(request, data.target, "publish")
    count = await context.admin.republish(
        cached.name, target.name, filter=data.filter, where=data.where, start_seq=data.start_seq, end_seq=data.end_seq,
        start_time=data.start_time, end_time=data.end_time, dry_run=data.dry_run,
    )  # fmt: skip
    return PublishedAnswer(Published(count))


@post(
    "/streams/{stream:str}/publish",
    effect="change",
    summary="Publish a message by hand",
    tags=["Messages"],
    status_code=200,
)
async def publish(
    request: AnyRequest, context: Context, stream: StreamRef, data: JSONBody[MessageByHand]
) -> PublishedByHandAnswer:
    """Publishes one message with an entry in the audit log, for people. Programs publish with `POST
    /streams/{stream}/messages`, which is faster and leaves no entry."""
    cached = await context.stream(request, stream, "publish")
    headers = encode_headers(data.headers)
    text = msgspec.json.decode(await request.body(), type=DataText).data
    seq = await publish_by_hand(context.admin, cached.name, data.key, bytes(text).decode(), headers)
    context.engine.published(cached.name)
    return PublishedByHandAnswer(PublishedByHand(seq))


@post("/streams/{stream:str}/erasures", effect="change", summary="Erase messages", tags=["Messages"], status_code=200)
async def erase(request: AnyRequest, context: Context, stream: StreamRef, data: JSONBody[Erase]) -> ErasedAnswer:
    """Deletes messages for good: their contents, their keys, and the dead letters that are of them. No consumer gets
    them any more. Who did it, when and why stays."""
    cached = await context.stream(request, stream, "admin")
    erased = await context.admin.erase(cached.name, data.seqs, reason=data.reason)
    context.engine.forget_messages()
    return ErasedAnswer(Erased(erased))


@get(
    "/streams/{stream:str}/erasures",
    effect="read",
    summary="List erased messages",
    tags=["Messages"],
    description=f"Returns what is left of erased messages, in seq order. A page ends after {_MOST_ERASURES} of them.",
)
async def list_erasures(
    request: AnyRequest, context: Context, stream: StreamRef, limit: Limit = 100, after: AfterSeq = None, before: BeforeSeq = None,
) -> Listed[Erasure]:  # fmt: skip
    check_one_place(after, before)
    cached = await context.stream(request, stream, "admin")
    found = await store.erasures(
        context.engine.app.database, cached.name, limit=min(limit, _MOST_ERASURES), above=after or 0, below=before
    )
    return page(found, lambda erasure: erasure.seq, after=after, before=before)


def _one_of(filters: list[str] | None, older: list[str] | None) -> list[str] | None:
    """Return the filters under either name. Raises a `Problem` if both are given and differ."""
    if filters is not None and older is not None and filters != older:
        raise Problem(
            422, "invalid", "filter and key_pattern are the same parameter. Give only filter.",
            validation_errors={"key_pattern": ["It differs from filter, which is its newer name."]},
        )  # fmt: skip
    return older if filters is None else filters


def _unknown_key(stream: str, key: str) -> Problem:
    return Problem(404, "unknown_key", f"The stream {stream!r} has no message with the key {key!r}.")


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    list_messages,
    read_message,
    read_standing,
    republish,
    publish,
    erase,
    list_erasures,
)
