"""Routes of dead letters and of the keys that they block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter
from litestar.response import Stream

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES, check_seq, dead_letters_of
from headrace.model.conditions.selections import DeadLetterCriteria, DeathCriteria
from headrace.model.records import BlockedKey, DeadLetter, DeadLetterGroup, GroupedBy
from headrace.server.errors import Problem
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.inspecting.exports import EXPORT_PAGE, NDJSON, exported
from headrace.server.routes.paging import HIGHEST, NOT_NEGATIVE, PAGE_SIZE, AfterSeq, BeforeSeq, check_one_place, page
from headrace.server.routes.parameters import ConsumerRef, Limit, SeqRef, StreamRef, with_criteria
from headrace.server.wire.common import Listed

By = Annotated[
    GroupedBy,
    QueryParameter(
        description="What the dead letters of a group have in common: the type of their error, its whole text, the reason, the key, or the hour or day (UTC) of their death."
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


@get(
    f"{_PATH}/dead_letters", effect="read", summary="List dead letters", tags=["Dead letters"],
    description=f"Returns dead letters in seq order, with the error of the last attempt. A page ends once its contents have {PAGE_SIZE}.",
)  # fmt: skip
@with_criteria(DeadLetterCriteria)
async def list_dead_letters(
    request: AnyRequest,
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    limit: Limit = 100,
    above: AboveSeq = 0,
    after: AfterSeq = None,
    before: BeforeSeq = None,
    **criteria: Any,
) -> Listed[DeadLetter]:
    check_one_place(after, before)
    cached = await context.consumer(request, stream, consumer, "consume")
    selection = dead_letters_of(**criteria)
    found = await context.raw_messages.dead_letters(
        cached, selection, limit=limit, above=max(above, after or 0), below=before
    )
    return page(found, lambda letter: letter.seq, after=after or above or None, before=before)


@get(
    f"{_PATH}/dead_letters/groups", effect="read", summary="Count dead letters in groups", tags=["Dead letters"],
    description="Returns the largest groups of dead letters that have something in common, the largest first. Values are compared as they are stored.",
)  # fmt: skip
@with_criteria(DeathCriteria)
async def group_dead_letters(
    request: AnyRequest,
    context: Context,
    stream: StreamRef,
    consumer: ConsumerRef,
    by: By = "type",
    limit: Limit = 100,
    **criteria: Any,
) -> Listed[DeadLetterGroup]:
    cached = await context.consumer(request, stream, consumer, "consume")
    return Listed(await context.admin.dead_letter_groups(cached.stream.name, cached.name, by, limit=limit, **criteria))


@get(
    f"{_PATH}/dead_letters/export", effect="read", summary="Export dead letters", tags=["Dead letters"], media_type=NDJSON,
    description="Returns all dead letters that match, in seq order, one line of JSON each. They are read in pages, so dead letters"
    " that appear or vanish meanwhile may be missing. A last line with `summary` and `code` says that the export could not go on.",
)  # fmt: skip
@with_criteria(DeadLetterCriteria)
async def export_dead_letters(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, **criteria: Any
) -> Stream:
    cached = await context.consumer(request, stream, consumer, "consume")
    selection = dead_letters_of(**criteria)
    first = await context.raw_messages.dead_letters(cached, selection, limit=EXPORT_PAGE)
    return Stream(exported(context.raw_messages, cached, selection, first), media_type=NDJSON)


@get(f"{_PATH}/dead_letters/{{seq:int}}", effect="read", summary="Read a dead letter", tags=["Dead letters"])
async def read_dead_letter(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, seq: SeqRef
) -> DeadLetter:
    """Returns a dead letter. 404 if it does not exist."""
    cached = await context.consumer(request, stream, consumer, "consume")
    check_seq("seq", seq)
    found = await context.raw_messages.dead_letters(cached, dead_letters_of(), above=seq - 1, limit=1)
    if not found or found[0].seq != seq:
        raise Problem(404, "unknown_dead_letter", f"The consumer {cached.name!r} has no dead letter {seq}.")
    return found[0]


@get(
    f"{_PATH}/blocked_keys",
    effect="read",
    summary="List blocked keys",
    tags=["Dead letters"],
    description=f"Returns keys that stay blocked until you redrive or purge their dead letters, in the order of these. A page ends once its keys and errors have {PAGE_SIZE}.",
)
async def list_blocked_keys(
    request: AnyRequest, context: Context, stream: StreamRef, consumer: ConsumerRef, limit: Limit = 100, after: AfterSeq = None,
    before: BeforeSeq = None,
) -> Listed[BlockedKey]:  # fmt: skip
    check_one_place(after, before)
    cached = await context.consumer(request, stream, consumer, "consume")
    found = await store.blocked_keys(
        context.engine.app.database, cached.number, limit=limit, above=after or 0, below=before, newest=before is not None,
        max_bytes=MAX_ANSWER_BYTES,
    )  # fmt: skip
    return page(found, lambda blocked: blocked.seq, after=after, before=before)


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    list_dead_letters,
    group_dead_letters,
    export_dead_letters,
    read_dead_letter,
    list_blocked_keys,
)
