"""Route of the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import QueryParameter

from headrace import store
from headrace.admin.validation import utc
from headrace.model.pages import Page
from headrace.model.settings import amount
from headrace.model.watching.audit import KEPT_ENTRIES, KEPT_SECONDS, AuditEntry
from headrace.server.engine import Engine
from headrace.server.merging import merged, read_all
from headrace.server.routes.context import AnyRequest, Context
from headrace.server.routes.paging import check_one_place, page
from headrace.server.wire.common import Listed

_NO_NUL = r"^[^\x00]*$"
_MAX_LIMIT = 10_000

_HIGHEST = 2**63 - 1
_PLACE = "^[0-9]{1,19}$"

AuditAfter = Annotated[
    str | None,
    QueryParameter(pattern=_PLACE, description="Return older changes than this one: `next` of the page before."),
]
AuditBefore = Annotated[
    str | None,
    QueryParameter(pattern=_PLACE, description="Return newer changes than this one: `prev` of the page after."),
]
AuditLimit = Annotated[int, QueryParameter(ge=1, le=_MAX_LIMIT, description="Maximum number of results.")]


@get(
    "/audit",
    effect="read",
    summary="Read the audit log",
    tags=["Audit"],
    description="Returns the changes that were made through the API, in the console, by commands and by code, the newest first. Each is"
    f" kept for {amount(KEPT_SECONDS, 'seconds')}, and the newest {KEPT_ENTRIES:,} of a database at most. It requires `admin` of all"
    " streams. With `admin` of some streams, it returns the changes of these.",
)
async def list_changes(
    request: AnyRequest, context: Context, limit: AuditLimit = 100, after: AuditAfter = None, before: AuditBefore = None,
    stream: Annotated[str | None, QueryParameter(max_length=200, pattern=_NO_NUL, description="Only changes about the stream of this name, which need not exist any more.")] = None,
    actor: Annotated[str | None, QueryParameter(max_length=200, pattern=_NO_NUL, description="Only changes in this name.")] = None,
    action: Annotated[str | None, QueryParameter(max_length=100, pattern=_NO_NUL, description="Only changes of this kind: an action such as `consumer.seek`, or what comes before the dot.")] = None,
    since: Annotated[datetime | None, QueryParameter(description="Only changes at this time or later.")] = None,
    until: Annotated[datetime | None, QueryParameter(description="Only changes before this time.")] = None,
) -> Listed[AuditEntry]:  # fmt: skip
    check_one_place(after, before)
    visible = await context.scope(request, "admin")
    if visible is not None and not visible:
        await context.check_all_streams(request, "admin")  # raises

    async def read(one: Engine) -> Page[AuditEntry]:
        return await store.changes(
            one.app.database, stream=stream, streams=visible, actor=actor, action=action, since=utc(since), until=utc(until),
            limit=limit, after=_place(after), before=_place(before),
        )  # fmt: skip

    pages, away = await read_all(context.engine, read)
    found = merged(pages, lambda entry: -entry.place, limit, backwards=before is not None)
    return page(found, lambda entry: entry.id, after=after, before=before, unavailable=away)


def _place(text: str | None) -> int | None:
    return None if text is None else min(int(text), _HIGHEST)


ROUTES: Final[Sequence[HTTPRouteHandler]] = (list_changes,)
