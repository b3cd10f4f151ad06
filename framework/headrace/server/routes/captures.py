"""Routes of capturing sources: check, pause, resume, backfills, and changes that could not be
made into messages."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from litestar import post
from litestar.params import Body, QueryParameter
from msgspec.structs import asdict

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.capture import Backfill, BackfillInfo, FailedChange, Finding
from headrace.model.pages import Page, PageRequest
from headrace.server.access import methods
from headrace.server.engine import Engine
from headrace.server.errors import invalid
from headrace.server.merging import merged_page
from headrace.server.routes.context import Context, RouteContext
from headrace.server.routes.paging import HIGHEST, NOT_NEGATIVE, PAGE_SIZE, NamePage, SeqPage, TextPage, page
from headrace.server.routes.parameters import SourceRef, with_query
from headrace.server.wire.common import Listed
from headrace.server.wire.sources import NewSource
from headrace.sources.postgres.spec import PostgresSpec

_PATH = "/sources/{source:str}"
_TAGS = ["Change capture"]


@post("/source-check", effect="read", summary="Check the settings of a new source", tags=_TAGS, status_code=200)
async def check_spec(context: Context, data: Annotated[NewSource, Body()]) -> Listed[Finding]:
    """Checks whether the source's tables can be captured. The answer lists every check, and
    the statements that fix what failed."""
    await context.check_all_streams("admin")
    spec = data.spec(data.stream)
    if not isinstance(spec, PostgresSpec):
        raise invalid("kind='webhook' can't be checked. Only sources of the kind postgres can.", "kind", "webhook")
    context.engine.transforms.check_settings(spec.settings())
    return Listed(await context.admin.check_spec(spec))


def _newest_first(backfill: BackfillInfo) -> tuple[float, int]:
    return -backfill.created_at.timestamp(), -UUID(backfill.id).int


async def _backfills(context: RouteContext, source: str | None, asked: NamePage) -> Listed[Backfill]:
    async def read(engine: Engine, asked: PageRequest[str]) -> Page[BackfillInfo]:
        return await store.backfills(engine.app.database, source, **asdict(asked), max_bytes=MAX_ANSWER_BYTES)

    backfills, unavailable = await merged_page(
        context.engine,
        read,
        asked,
        kind="source" if source is None else None,
        name=lambda backfill: backfill.source,
        place=lambda backfill: backfill.place,
        order=_newest_first,
    )
    return page(backfills, lambda backfill: backfill.place, asked, show=Backfill.of, unavailable=unavailable)


@methods.read(
    "/backfills",
    summary="List all backfills",
    tags=_TAGS,
    description=f"Returns backfills, newest first. A page ends once its conditions and reasons have {PAGE_SIZE}.",
)
@with_query
async def list_all_backfills(context: Context, asked: TextPage) -> Listed[Backfill]:
    await context.check_all_streams("admin")
    return await _backfills(context, None, asked)


@methods.read(
    f"{_PATH}/backfills",
    summary="List a source's backfills",
    tags=_TAGS,
    description=f"Returns backfills, newest first. A page ends once its conditions and reasons have {PAGE_SIZE}.",
)
@with_query
async def list_backfills(context: Context, source: SourceRef, asked: TextPage) -> Listed[Backfill]:
    info = await context.source(source)
    if info.kind != "postgres":
        await context.admin.backfills(info.id)  # raises the error that says so
    return await _backfills(context, info.id, asked)


@methods.read(
    f"{_PATH}/failures",
    summary="List failed changes",
    tags=_TAGS,
    description=f"Returns the changes that could not be made into messages, oldest first. A page ends once its changes and errors have {PAGE_SIZE}.",
)
@with_query
async def list_failures(
    context: Context,
    source: SourceRef,
    above: Annotated[
        int,
        QueryParameter(
            ge=0,
            lt=HIGHEST,
            schema_extra=NOT_NEGATIVE,
            description="Return only changes with a larger id. The same as `after`.",
        ),
    ] = 0,
    *,
    asked: SeqPage,
) -> Listed[FailedChange]:
    info = await context.source(source)
    if info.kind != "postgres":
        await context.admin.failures(info.id)  # raises the error that says so
    after = max(above, asked.after or 0)
    failures = await store.capture_failures(
        context.engine.app.database,
        info.id,
        above=after,
        below=asked.before,
        limit=asked.limit,
        max_bytes=MAX_ANSWER_BYTES,
        raw=True,
    )
    of = PageRequest(limit=asked.limit, after=after or None, before=asked.before)
    return page(failures, lambda failure: failure.id, of)
