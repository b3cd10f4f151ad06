"""Sources that capture tables: pause, check, backfill, and failed changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

from headrace import store
from headrace.admin.base import Base
from headrace.admin.source_settings import stored_spec, with_password
from headrace.admin.validation import MAX_ANSWER_BYTES, check_limit, condition_of
from headrace.admin.watching.recording import first_seqs
from headrace.model import conditions
from headrace.model.capture import BackfillInfo, BackfillKind, FailedChange, Finding
from headrace.model.conditions import Condition
from headrace.model.conditions.selections import Where
from headrace.model.errors import BackfillExists, InvalidInput, UnknownSource
from headrace.model.pages import Page, follow, listing
from headrace.model.sources import SourceInfo
from headrace.model.watching.audit import Change
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.table_names import canonical

_MAX_ID = 2**63 - 1
_MAX_RATE = 2**31 - 1


class Captures(Base):
    """The calls about sources that capture tables. `ref` is a source's name or its id."""

    async def pause_source(self, ref: str) -> SourceInfo:
        """Stop capturing until `resume_source`.

        Meanwhile the captured server keeps all WAL that is not captured yet.

        Returns:
            The source after the change. Raises `UnknownSource`, or `InvalidInput` if it captures no
            tables.
        """
        source, _ = await self._capture(ref)
        change = self._change_of("pause", source.name, source.stream)
        await self._change(change, lambda connection: store.pause_capture(connection, source.id, paused=True))
        return await store.source(self._database, source.id)

    async def resume_source(self, ref: str, *, anew: bool = False) -> SourceInfo:
        """Resume capturing at the position of the pause.

        Args:
            anew: start again instead, after the slot was lost or on another server. This creates a
                new slot, unless the source uses an existing one, and backfills all tables. In mode
                `changes` each row is published once more, as a read, and rows that were deleted in the
                meantime are not reported. In mode `rows` they get tombstones if the source has them.

        Returns:
            The source after the change. Raises `UnknownSource`, or `InvalidInput` if it captures no
            tables.
        """
        source, spec = await self._capture(ref)

        async def resume(connection: store.Executor) -> None:
            if not anew:
                await store.pause_capture(connection, source.id, paused=False)
                return
            await store.reset_capture(connection, source.id)
            for table in spec.tables:
                await store.start_backfill(connection, source.id, table)
                if spec.mode == "rows":  # rows that were deleted in the meantime
                    await store.start_backfill(connection, source.id, table, kind="repair")

        await self._change(self._change_of("resume", source.name, source.stream, anew=anew), resume)
        return await store.source(self._database, source.id)

    def _change_of(self, action: str, name: str, stream: str, **details: Any) -> Change:
        return Change(action=f"source.{action}", kind="source", name=name, stream=stream, details=details)

    async def check_source(self, ref: str) -> list[Finding]:
        """Check whether a source's database meets all requirements for capturing its tables. Changes nothing.

        Returns:
            The results of all checks. Raises `UnknownSource`, or `InvalidInput` if it captures no
            tables.
        """
        source, spec = await self._capture(ref)
        findings = await self._findings(self._dsn(spec), spec, source.id)
        capture = source.capture
        if capture is not None and capture.state == "stopped" and capture.reason is not None:
            findings.append(
                Finding(what="capture", level="error", message=f"It has stopped. {capture.reason}", hint=capture.mend)
            )
        return findings

    async def check_spec(self, spec: PostgresSpec) -> list[Finding]:
        """Run the same checks for a source that doesn't exist yet, or for other settings of one that exists."""
        try:
            source: SourceInfo | None = await store.source_with_secrets(self._database, spec.name)
        except UnknownSource:
            source = None
        spec = with_password(spec, source)
        database = self._given_database(spec) or spec.database or self._database.dsn
        return await self._findings(database, spec, str(uuid4()) if source is None else source.id)

    async def _findings(self, database: SourceDatabase, spec: PostgresSpec, id: str) -> list[Finding]:  # noqa: A002 - the record's word
        from headrace.sources.postgres.database.checks import check
        from headrace.sources.postgres.database.slots import slot_name

        shared = spec.shared_slot
        if shared is not None:
            shared = slot_name(shared, await store.shared_slot_id(self._database, shared))
        return await check(database, spec, slot_name(spec.name, id), shared_slot=shared)

    def _dsn(self, spec: PostgresSpec) -> SourceDatabase:
        """Return the captured database of a stored source."""
        return self._stored_database(spec) or spec.database or self._database.dsn

    async def _capture(self, ref: str) -> tuple[SourceInfo, PostgresSpec]:
        """Return a source, with its secrets, and its settings. Raises `InvalidInput` if it captures no tables."""
        source = await store.source_with_secrets(self._database, ref)
        spec = stored_spec(source)
        if not isinstance(spec, PostgresSpec):
            raise InvalidInput(
                f"The source {source.name!r} captures no tables. It is a source of the kind {source.kind!r}."
            )
        return source, spec

    # --- backfills

    async def start_backfill(
        self, ref: str, tables: Sequence[str] | None = None, where: Where = None, rate: int | None = None
    ) -> list[BackfillInfo]:
        """Start backfills, which publish the existing rows of tables while their changes are captured.

        A row is never published after a newer change of it.

        Args:
            tables: tables of the source. None for all that have no unfinished backfill.
            where: a condition on the rows' columns, such as `data.record.total > 100`. None for all rows.
            rate: maximum rows per second. None for the source's setting.

        Returns:
            The backfills, one for each table. The process that captures the source runs them.

        Raises:
            UnknownSource.
            InvalidFilter: an invalid condition.
            InvalidInput: a table that the source doesn't capture.
            BackfillExists: a table has an unfinished backfill. Then none is started.
        """
        return await self._start(ref, "backfill", tables, where, rate)

    async def verify_source(
        self, ref: str, tables: Sequence[str] | None = None, *, repair: bool = False, rate: int | None = None
    ) -> list[BackfillInfo]:
        """Compare tables with the stream, while their changes are captured. `backfills` lists the progress and the
        differences.

        Args:
            tables: tables of the source. None for all.
            repair: correct the stream: publish rows that differ or are missing, and tombstones of rows that are gone.
            rate: maximum rows per second. None for the source's setting.

        Returns:
            The verifications, one for each table. The process that captures the source runs them.

        Raises:
            UnknownSource.
            InvalidInput: a table that the source doesn't capture.
            BackfillExists: the same is queued for a table. Then none is started.
        """
        return await self._start(ref, "repair" if repair else "verification", tables, None, rate)

    async def _start(
        self, ref: str, kind: BackfillKind, tables: Sequence[str] | None, where: Where, rate: int | None
    ) -> list[BackfillInfo]:
        source, spec = await self._capture(ref)
        condition = condition_of(where)
        if rate is not None and not 1 <= rate <= _MAX_RATE:
            raise InvalidInput(f"rate={rate} must be from 1 to {_MAX_RATE:,} rows per second.")
        chosen = spec.tables if tables is None else tuple(dict.fromkeys(map(canonical, tables)))
        for table in chosen:
            if table not in spec.tables:
                raise InvalidInput(
                    f"The source {source.name!r} has no table {table!r}. Its tables are {', '.join(spec.tables)}."
                )
        if condition is not None:
            await self._check_condition(spec, chosen, condition)
        text = None if condition is None else conditions.encode(condition)
        change = self._change_of(kind, source.name, source.stream, where=text, rate=rate)

        async def start(connection: store.Executor) -> list[BackfillInfo]:
            ids = {
                table: await store.start_backfill(connection, source.id, table, text, rate, kind) for table in chosen
            }
            unfinished = [table for table, id_ in ids.items() if id_ is None]
            if unfinished and (tables is not None or len(unfinished) == len(chosen)):
                raise BackfillExists(
                    f"A {kind} of {', '.join(unfinished)} is queued or running. Wait until it is done, or cancel it with"
                    f" `headrace source backfill cancel {source.name}`."
                )
            change.details["tables"] = [table for table, id_ in ids.items() if id_ is not None]
            return await self._started(connection, source.id, [id_ for id_ in ids.values() if id_ is not None])

        return await self._change(change, start)

    async def _started(self, connection: store.Executor, source: str, ids: Sequence[str]) -> list[BackfillInfo]:
        """Return these backfills of a source, in their order."""

        async def read(after: str | None, limit: int) -> Page[BackfillInfo]:
            return await store.backfills(connection, source, after=after, limit=limit, max_bytes=MAX_ANSWER_BYTES)

        backfills: dict[str, BackfillInfo] = {}
        async for page in follow(read, lambda backfill: backfill.place):
            backfills |= {backfill.id: backfill for backfill in page if backfill.id in ids}
            if len(backfills) == len(ids):
                break
        return [backfills[id_] for id_ in ids]

    async def _check_condition(self, spec: PostgresSpec, tables: Sequence[str], condition: Condition) -> None:
        """Raise `InvalidInput` if the condition can't select rows of these tables."""
        from headrace.sources.postgres.backfill.row_conditions import check_condition
        from headrace.sources.postgres.connection.source_connection import SourceConnection
        from headrace.sources.postgres.database.catalog import load_tables

        async with await SourceConnection.connect(self._dsn(spec), application_name="headrace admin") as connection:
            for table in (await load_tables(connection, tables)).values():
                check_condition(condition, table)

    @listing
    async def backfills(self, ref: str | None = None, *, limit: int | None = 100) -> AsyncIterator[list[BackfillInfo]]:
        """List the last backfills of a source, or of all sources, newest first, at most `limit`. None for all."""
        check_limit(limit)
        source = None if ref is None else (await self._capture(ref))[0].id

        async def read(after: str | None, limit: int) -> Page[BackfillInfo]:
            return await store.backfills(self._database, source, after=after, limit=limit, max_bytes=MAX_ANSWER_BYTES)

        async for page in follow(read, lambda backfill: backfill.place, limit=limit):
            yield page

    async def cancel_backfills(self, ref: str, id: str | None = None) -> int:  # noqa: A002
        """Cancel a backfill by its id, or all backfills of a source. Rows that were published stay.

        Returns:
            The number of backfills that were cancelled.
        """
        source, _ = await self._capture(ref)
        if id is not None:
            try:
                id = str(UUID(id))  # noqa: A001
            except ValueError:
                raise InvalidInput(
                    f"{id[:80]!r} is not the id of a backfill. `headrace source backfill ls` lists them."
                ) from None
        change = self._change_of("cancel_backfills", source.name, source.stream, id=id)
        return await self._counted(change, lambda connection: store.cancel_backfills(connection, source.id, id))

    # --- failed changes

    @listing
    async def failures(self, ref: str, *, above: int = 0, limit: int = 100) -> AsyncIterator[list[FailedChange]]:
        """List the changes that could not be made into messages and have an id above `above`, oldest first, at most
        `limit`.
        """
        check_limit(limit)
        if not isinstance(above, int) or not 0 <= above <= _MAX_ID:
            raise InvalidInput(f"above={above!r} is not the id of a failed change, nor 0.")
        source, _ = await self._capture(ref)

        async def read(after: int | None, limit: int) -> Page[FailedChange]:
            return await store.capture_failures(
                self._database, source.id, above=after or above, limit=limit, max_bytes=MAX_ANSWER_BYTES
            )

        async for page in follow(read, lambda failure: failure.id, limit=limit):
            yield page

    async def retry_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Schedule failed changes for another try by the capturing process, all of them or those with these ids.

        Changes that succeed are published.

        Returns:
            The number of changes.
        """
        source, _ = await self._capture(ref)
        chosen = _checked(ids)
        change = self._change_of("retry_failures", source.name, source.stream, ids=chosen and first_seqs(chosen))
        return await self._counted(
            change, lambda connection: store.retry_capture_failures(connection, source.id, chosen)
        )

    async def drop_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Delete failed changes, all of them or those with these ids. They are not published.

        Returns:
            The number of changes.
        """
        source, _ = await self._capture(ref)
        chosen = _checked(ids)
        change = self._change_of("drop_failures", source.name, source.stream, ids=chosen and first_seqs(chosen))
        return await self._counted(
            change, lambda connection: store.drop_capture_failures(connection, source.id, chosen)
        )

    async def _counted(self, change: Change, work: Callable[[store.Executor], Awaitable[int]]) -> int:
        """Make a change to a number of things, and record it unless there were none."""

        async def once(connection: store.Executor) -> int:
            change.details["count"] = count = await work(connection)
            change.skipped = not count
            return count

        return await self._change(change, once)


def _checked(ids: Sequence[int] | None) -> list[int] | None:
    for id_ in ids or ():
        if not isinstance(id_, int) or isinstance(id_, bool) or not 1 <= id_ <= _MAX_ID:
            raise InvalidInput(f"{id_!r} is not the id of a failed change. Ids are whole numbers, and the first is 1.")
    return None if ids is None else list(ids)
