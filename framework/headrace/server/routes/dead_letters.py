"""Routes of dead letters and of the keys that they block."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from litestar.params import QueryParameter
from litestar.response import Stream

from headrace import store
from headrace.admin.consumers import dead_letters_page
from headrace.admin.validation import MAX_ANSWER_BYTES, check_seq, dead_letters_of
from headrace.model.conditions.selections import DeadLetterCriteria, DeathCriteria
from headrace.model.pages import Page, PageRequest
from headrace.model.records import BlockedKey, DeadLetter, DeadLetterGroup, GroupedBy
from headrace.server.access import methods
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.errors import Problem
from headrace.server.routes.context import Context, RouteContext
from headrace.server.routes.inspecting.exports import EXPORT_PAGE, NDJSON, exported
from headrace.server.routes.paging import HIGHEST, NOT_NEGATIVE, PAGE_SIZE, SeqPage, page
from headrace.server.routes.parameters import ConsumerRef, Limit, SeqRef, StreamRef, with_criteria, with_query
from headrace.server.wire.common import Listed

By = Annotated[
    GroupedBy,
    QueryParameter(
        description="The property by which dead letters are grouped: the type of their error, its whole text, the reason, the key, or the hour or day (UTC) of their death."
    ),
]
AboveSeq = Annotated[
    int,
    QueryParameter(
        ge=0,
        lt=HIGHEST,
        schema_extra=NOT_NEGATIVE,
        description="Return only dead letters with a larger seq. The same as `after`.",
    ),
]

_PATH = "/streams/{stream:str}/consumers/{consumer:str}"


@methods.read(
    f"{_PATH}/dead_letters",
    summary="List dead letters",
    tags=["Dead letters"],
    description=f"Returns dead letters in seq order, with the error of the last attempt. A page ends once its contents have {PAGE_SIZE}.",
)
@with_criteria(DeadLetterCriteria)
async def list_dead_letters(
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    above: AboveSeq = 0,
    *,
    asked: SeqPage,
    **criteria: Any,
) -> Listed[DeadLetter]:
    cached = await context.consumer(stream, consumer, "consume")
    after = max(above, asked.after or 0)
    letters = await _page_of(context, cached, dead_letters_of(**criteria), asked.limit, after, asked.before)
    of = PageRequest(limit=asked.limit, after=after or None, before=asked.before)
    return page(letters, lambda letter: letter.seq, of)


@methods.read(
    f"{_PATH}/dead_letters/groups",
    summary="Count dead letters in groups",
    tags=["Dead letters"],
    description="Returns the largest groups of dead letters that have something in common, the largest first. Values are compared as they are stored.",
)
@with_criteria(DeathCriteria)
async def group_dead_letters(
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    by: By = "type",
    limit: Limit = 100,
    **criteria: Any,
) -> Listed[DeadLetterGroup]:
    cached = await context.consumer(stream, consumer, "consume")
    return Listed(await context.admin.dead_letter_groups(cached.stream.name, cached.name, by, limit=limit, **criteria))


@methods.read(
    f"{_PATH}/dead_letters/export",
    summary="Export dead letters",
    tags=["Dead letters"],
    media_type=NDJSON,
    description="Returns all dead letters that match, in seq order, one line of JSON each. They are read in pages, so dead letters"
    " that appear or vanish meanwhile may be missing. A last line with `summary` and `code` says that the export could not continue.",
)
@with_criteria(DeadLetterCriteria)
async def export_dead_letters(context: Context, stream: StreamRef, consumer: ConsumerRef, **criteria: Any) -> Stream:
    cached = await context.consumer(stream, consumer, "consume")
    selection = dead_letters_of(**criteria)
    read = partial(_page_of, context, cached, selection, EXPORT_PAGE)
    return Stream(exported(read, await read()), media_type=NDJSON)


@methods.read(f"{_PATH}/dead_letters/{{seq:int}}", summary="Read a dead letter", tags=["Dead letters"])
async def read_dead_letter(context: Context, stream: StreamRef, consumer: ConsumerRef, seq: SeqRef) -> DeadLetter:
    """Returns a dead letter. 404 if it does not exist."""
    cached = await context.consumer(stream, consumer, "consume")
    check_seq("seq", seq)
    letters = await _page_of(context, cached, dead_letters_of(), 1, seq - 1)
    if not letters or letters[0].seq != seq:
        raise Problem(404, "unknown_dead_letter", f"The consumer {cached.name!r} has no dead letter {seq}.")
    return letters[0]


@methods.read(
    f"{_PATH}/blocked_keys",
    summary="List blocked keys",
    tags=["Dead letters"],
    description=f"Returns keys that stay blocked until you redrive or purge their dead letters, in the order of these. A page ends once its keys and errors have {PAGE_SIZE}.",
)
@with_query
async def list_blocked_keys(
    context: Context, stream: StreamRef, consumer: ConsumerRef, asked: SeqPage
) -> Listed[BlockedKey]:
    cached = await context.consumer(stream, consumer, "consume")
    database, above = context.engine.app.database, asked.after or 0
    keys = await store.blocked_keys(
        database, cached.number, limit=asked.limit, above=above, below=asked.before, max_bytes=MAX_ANSWER_BYTES
    )
    return page(keys, lambda blocked: blocked.seq, asked)


async def _page_of(
    context: RouteContext,
    consumer: CachedConsumer,
    selection: DeadLetterCriteria,
    limit: int,
    above: int = 0,
    below: int | None = None,
) -> Page[DeadLetter]:
    return await dead_letters_page(
        context.reading, consumer.stream.name, consumer.number, selection, limit=limit, above=above, below=below
    )
