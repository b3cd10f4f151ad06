"""Calls for operators: the live state, the audit log, and samples for charts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Unpack

from headrace import store
from headrace.admin.base import Base
from headrace.admin.live.rows import process_row
from headrace.admin.validation import check_limit, in_utc
from headrace.model.clock import utc
from headrace.model.conditions.selections import AuditCriteria
from headrace.model.errors import InvalidInput
from headrace.model.pages import Page, follow, listing
from headrace.model.watching.audit import AuditEntry
from headrace.model.watching.live import LiveSnapshot, ProcessRow
from headrace.model.watching.samples import MAX_POINTS, Chart, SampleKind


class Watching(Base):
    """The calls about the live state, the audit log and samples."""

    async def snapshot(self) -> LiveSnapshot:
        """Return the live state of all streams, consumers, running processes, and sources with their queued or running
        backfills. The console and `headrace observe` show the same.

        You can call it every second, on one `Admin`, which remembers what rates and trends follow from. The first call takes up to
        seven short statements and later ones about four, whatever is in the database. Sizes of many streams
        are read in turn, 20 at a time, and are None until then.
        """
        return await self._live.snapshot(self._database)

    async def processes(self) -> list[ProcessRow]:
        """Return the running processes, with what each consumer does in them."""
        at, workers = await store.workers(self._database)
        return [process_row(one, at) for one in workers]

    @listing
    async def audit(
        self, *, limit: int | None = 100, **criteria: Unpack[AuditCriteria]
    ) -> AsyncIterator[list[AuditEntry]]:
        """List the recorded changes that match, the newest first, at most `limit`. None for all that are kept.

        Args:
            criteria: `stream`, `actor`, `action`, `since` and `until`, see `AuditCriteria`. An actor is the name of a token, or of the system user that ran a command.
        """
        check_limit(limit)
        chosen = in_utc(criteria)

        async def read(after: int | None, limit: int) -> Page[AuditEntry]:
            return await store.changes(self._database, limit=limit, after=after, **chosen)

        async for page in follow(read, lambda entry: entry.place, limit=limit):
            yield page

    async def samples(
        self,
        kind: SampleKind = "total",
        *,
        stream: str | None = None,
        consumer: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        points: int = 180,
    ) -> Chart:
        """Return figures over time, for a chart. They are kept for a week, 10 seconds for an hour, a minute for a day, and
        then 10 minutes.

        Args:
            kind: "total" of all streams and consumers, "stream" or "consumer".
            stream, consumer: the names of what they are of.
            since: the beginning, by default 3 hours before the end.
            until: the end, by default now.
            points: the most intervals. There may be fewer, since they have even lengths.

        Raises:
            InvalidInput: there is no stream or consumer to a kind, or the beginning is not before the end.
        """
        now = datetime.now(UTC)
        end = utc(until) or now
        start = utc(since) or end - timedelta(hours=3)
        if start >= end:
            raise InvalidInput(f"since={start} must be before until={end}.", field="since")
        if not 2 <= points <= MAX_POINTS:
            raise InvalidInput(f"points={points} must be from 2 to {MAX_POINTS:,}.", field="points")
        number = await self._number(kind, stream, consumer)
        return await store.chart(self._database, kind, number, start, end, points, now=now)

    async def _number(self, kind: SampleKind, stream: str | None, consumer: str | None) -> int:
        if kind == "total":
            return 0
        if stream is None or (kind == "consumer" and consumer is None):
            raise InvalidInput(f"Samples of a {kind} need its names. Give {kind}.", field=kind)
        if kind == "consumer" and consumer is not None:
            return await self._consumer(stream, consumer)
        return (await store.find_stream(self._database, stream))[0]
