"""Routes of dead letters and of the keys that they block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, QueryParameter

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES, check_seq
from headrace.model.records import BlockedKey, DeadLetter
from headrace.server.access.scopes import Access
from headrace.server.engine import Engine
from headrace.server.errors import Problem
from headrace.server.routes.context import AnyRequest, RouteContext
from headrace.server.routes.paging import HIGHEST, NOT_NEGATIVE, PAGE_SIZE, AfterSeq, BeforeSeq, check_one_place, page
from headrace.server.routes.parameters import ConsumerRef, Filter, Limit, SeqRef, StreamRef, Where
from headrace.server.wire.common import Listed
from headrace.server.wire.dead_letters import DeadLetterChoice, Purged, PurgedAnswer, Redriven, RedrivenAnswer

_PATH = "/streams/{stream:str}/consumers/{consumer:str}"


def routes(engine: Engine, access: Access) -> Sequence[HTTPRouteHandler]:
    """Return the handlers."""
    context = RouteContext(engine, access)

    @get(
        f"{_PATH}/dead_letters", summary="List dead letters", tags=["Dead letters"],
        description=f"Returns dead letters in seq order, with the error of the last attempt. A page ends once its contents have {PAGE_SIZE}.",
    )  # fmt: skip
    async def list_dead_letters(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, limit: Limit = 100, filter: Filter = None,  # noqa: A002
        where: Where = None,
        above: Annotated[int, QueryParameter(ge=0, lt=HIGHEST, schema_extra=NOT_NEGATIVE, description="Return only dead letters with a larger seq. The same as `after`.")] = 0,
        after: AfterSeq = None, before: BeforeSeq = None,
    ) -> Listed[DeadLetter]:  # fmt: skip
        check_one_place(after, before)
        cached = await context.consumer(request, stream, consumer, "consume")
        found = await context.raw_messages.dead_letters(
            cached, limit=limit, filter=filter, where=where, above=max(above, after or 0), below=before
        )
        return page(found, lambda letter: letter.seq, after=after or above or None, before=before)

    @get(f"{_PATH}/dead_letters/{{seq:int}}", summary="Read a dead letter", tags=["Dead letters"])
    async def read_dead_letter(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, seq: SeqRef
    ) -> DeadLetter:
        """Returns a dead letter. 404 if it does not exist."""
        cached = await context.consumer(request, stream, consumer, "consume")
        check_seq("seq", seq)
        found = await context.raw_messages.dead_letters(cached, above=seq - 1, limit=1)
        if not found or found[0].seq != seq:
            raise Problem(404, "unknown_dead_letter", f"The consumer {cached.name!r} has no dead letter {seq}.")
        return found[0]

    @post(f"{_PATH}/dead_letters/redrive", summary="Redrive dead letters", tags=["Dead letters"], status_code=200)
    async def redrive(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[DeadLetterChoice | None] = None
    ) -> RedrivenAnswer:
        """Delivers dead letters again, with their attempts reset to zero. Keys that they block continue."""
        cached, choice = await context.consumer(request, stream, consumer, "admin"), data or DeadLetterChoice()
        count = await context.admin.redrive(
            cached.stream.name, cached.name, seqs=choice.seqs, key=choice.key, filter=choice.filter, where=choice.where,
            dry_run=choice.dry_run,
        )  # fmt: skip
        return RedrivenAnswer(Redriven(count))

    @post(f"{_PATH}/dead_letters/purge", summary="Delete dead letters", tags=["Dead letters"], status_code=200)
    async def purge(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, data: JSONBody[DeadLetterChoice | None] = None
    ) -> PurgedAnswer:
        """Deletes dead letters. Keys that they block continue with the next message."""
        cached, choice = await context.consumer(request, stream, consumer, "admin"), data or DeadLetterChoice()
        count = await context.admin.purge(
            cached.stream.name, cached.name, seqs=choice.seqs, key=choice.key, filter=choice.filter, where=choice.where,
            dry_run=choice.dry_run,
        )  # fmt: skip
        return PurgedAnswer(Purged(count))

    @get(
        f"{_PATH}/blocked_keys",
        summary="List blocked keys",
        tags=["Dead letters"],
        description=f"Returns keys that stay blocked until you redrive or purge their dead letters, in the order of these. A page ends once its keys and errors have {PAGE_SIZE}.",
    )
    async def list_blocked_keys(
        request: AnyRequest, stream: StreamRef, consumer: ConsumerRef, limit: Limit = 100, after: AfterSeq = None,
        before: BeforeSeq = None,
    ) -> Listed[BlockedKey]:  # fmt: skip
        check_one_place(after, before)
        cached = await context.consumer(request, stream, consumer, "consume")
        found = await store.blocked_keys(
            engine.app.database, cached.number, limit=limit, above=after or 0, below=before, newest=before is not None,
            max_bytes=MAX_ANSWER_BYTES,
        )  # fmt: skip
        return page(found, lambda blocked: blocked.seq, after=after, before=before)

    return [list_dead_letters, read_dead_letter, redrive, purge, list_blocked_keys]
