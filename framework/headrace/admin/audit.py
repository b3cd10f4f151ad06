"""The audit log: list the changes that somebody made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import check_limit, utc
from headrace.model.pages import Page, follow, listing
from headrace.model.watching.audit import AuditEntry


class Audit(Base):
    """The calls about the audit log."""

    @listing
    async def audit(
        self, *, stream: str | None = None, actor: str | None = None, action: str | None = None,
        since: datetime | None = None, until: datetime | None = None, limit: int | None = 100,
    ) -> AsyncIterator[list[AuditEntry]]:  # fmt: skip
        """List the changes that somebody made, the newest first, at most `limit`. None for all that are kept.

        Args:
            stream: only changes about the stream of this name, which need not exist any more.
            actor: only those in this name: that of a token, or of the user of the system who ran a command.
            action: only these, such as `consumer.seek`, or `consumer` for all of a kind.
            since: only those at this time or later.
            until: only those before this time.
        """
        check_limit(limit)

        async def read(after: int | None, limit: int) -> Page[AuditEntry]:
            return await store.changes(
                self._database, stream=stream, actor=actor, action=action, since=utc(since), until=utc(until),
                limit=limit, after=after,
            )  # fmt: skip

        async for page in follow(read, lambda entry: entry.place, limit=limit):
            yield page
