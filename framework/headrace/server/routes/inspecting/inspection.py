"""Routes that look closely: searches through a stream, and the journey of a message."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar.params import QueryParameter
from msgspec.structs import asdict

from headrace.admin.journeys import MAX_STOPS
from headrace.admin.validation import of_key
from headrace.server.access import methods
from headrace.server.errors import Problem
from headrace.server.routes.context import Context
from headrace.server.routes.paging import PAGE_SIZE, AfterName, SeqPage
from headrace.server.routes.parameters import ExactKey, Filter, Limit, SeqRef, StreamRef, Where, with_query
from headrace.server.wire.inspection import JourneyAnswer, MessageJourney, SearchAnswer
from headrace.store.messages.search import EXAMINED

Since = Annotated[
    datetime | None, QueryParameter(description="Return only messages that were published at this time or later.")
]
Until = Annotated[
    datetime | None, QueryParameter(description="Return only messages that were published before this time.")
]


class Search(SeqPage, frozen=True, kw_only=True):
    """A step of a search."""

    limit: Limit = 50
    filter: Filter = None
    key: ExactKey = None
    where: Where = None
    since: Since = None
    until: Until = None


@methods.read(
    "/streams/{stream:str}/search",
    summary="Search messages",
    tags=["Messages"],
    description="Does one step of a search, from the newest message on, or upwards from `after`. It ends after about a second,"
    f" after {EXAMINED:,} messages, once it has found `limit` messages, or {PAGE_SIZE}. Continue with `before` (or `after`) as"
    " `position`, while there is `more`. Closing the connection ends it in the database, too.",
)
@with_query
async def search_messages(context: Context, stream: StreamRef, asked: Search) -> SearchAnswer:
    cached = await context.stream(stream, "consume")
    criteria = asdict(asked)
    criteria["filter"] = of_key(asked.filter, criteria.pop("key"))
    return SearchAnswer.of(await context.reading.search(cached.name, **criteria), cached.id)


@methods.read("/streams/{stream:str}/journeys/{seq:int}", summary="Read a message's journey", tags=["Messages"])
async def read_journey(
    context: Context, stream: StreamRef, seq: SeqRef, limit: Limit = MAX_STOPS, after: AfterName = None
) -> JourneyAnswer:
    """Returns a message by its seq, and what became of it in each consumer, at most 1,000 of them. Nothing is kept about a message that a consumer is done
    with, so `reason` says what is known, and from where. 404 if nothing is left of the message, or there never was one."""
    cached = await context.stream(stream, "consume")
    journey = await context.reading.journey(cached.name, seq, limit=limit, after=after)
    if journey is None:
        raise Problem(
            404,
            "unknown_message",
            f"The stream {cached.name!r} has no message {seq}. Retention or a newer message of its key has removed it, its"
            " transaction was rolled back or has not committed, or it was not published yet.",
        )
    return JourneyAnswer(MessageJourney.of(journey, cached.id, context.options.trace_url))
