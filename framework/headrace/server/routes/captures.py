"""Routes of capturing sources: check, pause, resume, backfills, and changes that could not be
made into messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, QueryParameter

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.capture import Backfill, BackfillInfo, FailedChange, Finding
from headrace.model.pages import Page
from headrace.server.engine import Engine
from headrace.server.errors import Problem
from headrace.server.merging import merged_page
from headrace.server.routes.context import AnyRequest, Context, RouteContext
from headrace.server.routes.paging import (
    HIGHEST,
    NOT_NEGATIVE,
    PAGE_SIZE,
    AfterName,
    AfterSeq,
    BeforeName,
    BeforeSeq,
    check_one_place,
    page,
)
from headrace.server.routes.parameters import Limit, SourceRef
from headrace.server.wire.common import Listed
from headrace.server.wire.sources import NewSource
from headrace.sources.postgres.spec import PostgresSpec

_PATH = "/sources/{source:str}"
_TAGS = ["Change capture"]


@post("/source-check", effect="read", summary="Check the settings of a new source", tags=_TAGS, status_code=200)
async def check_spec(request: AnyRequest, context: Context, data: Annotated[NewSource, Body()]) -> Listed[Finding]:
    """Checks whether the source's tables can be captured. The answer lists every check, and
    the statements that fix what failed."""
    await context.check_all_streams(request, "admin")
    spec = data.spec(data.stream)
    if not isinstance(spec, PostgresSpec):
        raise Problem(
            422,
            "invalid",
            "kind='webhook' can't be checked. Only sources of the kind postgres can.",
            validation_errors={"kind": ["webhook"]},
        )
    context.engine.transforms.check_settings(spec.settings())
    return Listed(await context.admin.check_spec(spec))


def _newest_first(backfill: BackfillInfo) -> tuple[float, int]:
    return -backfill.created_at.timestamp(), -UUID(backfill.id).int


async def _backfills(
    context: RouteContext, source: str | None, limit: int, after: str | None, before: str | None
) -> Listed[Backfill]:
    check_one_place(after, before)

    async def read(engine: Engine, after: str | None, before: str | None) -> Page[BackfillInfo]:
        return await store.backfills(
            engine.app.database, source, limit=limit, after=after, before=before, max_bytes=MAX_ANSWER_BYTES
        )

    found, away = await merged_page(
        context.engine,
        read,
        kind="source",
        name=lambda backfill: backfill.source,
        place=lambda backfill: backfill.place,
        limit=limit,
        after=after,
        before=before,
        order=_newest_first,
        alone=source is not None,
    )
    return page(found, lambda backfill: backfill.place, after=after, before=before, show=Backfill.of, unavailable=away)


@get(
    "/backfills",
    effect="read",
    summary="List all backfills",
    tags=_TAGS,
    description=f"Returns backfills, newest first. A page ends once its conditions and reasons have {PAGE_SIZE}.",
)
async def list_all_backfills(
    request: AnyRequest, context: Context, limit: Limit = 100, after: AfterName = None, before: BeforeName = None
) -> Listed[Backfill]:
    await context.check_all_streams(request, "admin")
    return await _backfills(context, None, limit, after, before)


@get(
    f"{_PATH}/backfills",
    effect="read",
    summary="List a source's backfills",
    tags=_TAGS,
    description=f"Returns backfills, newest first. A page ends once its conditions and reasons have {PAGE_SIZE}.",
)
async def list_backfills(
    request: AnyRequest,
    context: Context,
    source: SourceRef,
    limit: Limit = 100,
    after: AfterName = None,
    before: BeforeName = None,
) -> Listed[Backfill]:
    info = await context.source(request, source)
    if info.kind != "postgres":
        await context.admin.backfills(info.id)  # raises the error that says so
    return await _backfills(context, info.id, limit, after, before)


@get(
    f"{_PATH}/failures",
    effect="read",
    summary="List failed changes",
    tags=_TAGS,
    description=f"Returns the changes that could not be made into messages, oldest first. A page ends once its changes and errors have {PAGE_SIZE}.",
)
async def list_failures(
    request: AnyRequest,
    context: Context,
    source: SourceRef,
    limit: Limit = 100,
    above: Annotated[
        int,
        QueryParameter(
            ge=0,
            lt=HIGHEST,
            schema_extra=NOT_NEGATIVE,
            description="Return only changes with a larger id. The same as `after`.",
        ),
    ] = 0,
    after: AfterSeq = None,
    before: BeforeSeq = None,
) -> Listed[FailedChange]:
    check_one_place(after, before)
    info = await context.source(request, source)
    if info.kind != "postgres":
        await context.admin.failures(info.id)  # raises the error that says so
    found = await store.capture_failures(
        context.engine.app.database, info.id, above=max(above, after or 0), below=before, limit=limit,
        max_bytes=MAX_ANSWER_BYTES, raw=True,
    )  # fmt: skip
    return page(found, lambda failure: failure.id, after=after or above or None, before=before)


ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    check_spec,
    list_all_backfills,
    list_backfills,
    list_failures,
)
