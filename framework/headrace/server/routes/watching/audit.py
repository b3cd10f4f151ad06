"""Route of the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from litestar.params import QueryParameter
from msgspec.structs import asdict

from headrace import store
from headrace.admin.validation import in_utc
from headrace.model.conditions.selections import AuditCriteria
from headrace.model.pages import Page
from headrace.model.settings import amount
from headrace.model.watching.audit import KEPT_ENTRIES, KEPT_SECONDS, AuditEntry
from headrace.server.access import methods
from headrace.server.engine import Engine
from headrace.server.merging import merged, read_all
from headrace.server.routes.context import Context
from headrace.server.routes.paging import PageQuery, page
from headrace.server.routes.parameters import Limit, with_criteria
from headrace.server.wire.common import Listed

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


class AuditPage(PageQuery[str], frozen=True, kw_only=True):
    """A page of the audit log."""

    limit: Limit = 100
    after: AuditAfter = None
    before: AuditBefore = None


@methods.read(
    "/audit",
    summary="Read the audit log",
    tags=["Audit"],
    description="Returns the changes that were made through the API, in the console, by commands and by code, the newest first. Each is"
    f" kept for {amount(KEPT_SECONDS, 'seconds')}, and the newest {KEPT_ENTRIES:,} of a database at most. It requires `admin` of all"
    " streams. With `admin` of some streams, it returns the changes of these.",
)
@with_criteria(AuditCriteria)
async def list_changes(context: Context, asked: AuditPage, **criteria: Any) -> Listed[AuditEntry]:
    visible = await context.scope("admin")
    if visible is not None and not visible:
        await context.check_all_streams("admin")  # raises
    positions, chosen = asked.at(_position), in_utc(criteria)

    async def read(engine: Engine) -> Page[AuditEntry]:
        return await store.changes(engine.app.database, streams=visible, **asdict(positions), **chosen)

    pages, unavailable = await read_all(context.engine, read)
    changes = merged(pages, lambda entry: -entry.place, asked.limit, backwards=asked.before is not None)
    return page(changes, lambda entry: entry.id, asked, unavailable=unavailable)


def _position(text: str) -> int:
    return min(int(text), _HIGHEST)
