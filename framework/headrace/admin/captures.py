"""Administration of change capture: pause, check, backfill, and changes that could not become messages."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

from headrace import store
from headrace.admin.base import Base
from headrace.admin.source_settings import checked_database, stored_spec
from headrace.admin.validation import Where, check_limit, condition_of
from headrace.model.capture import BackfillInfo, FailedChange, Finding
from headrace.model.conditions import Condition
from headrace.model.errors import InUse, InvalidInput, UnknownSource
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.database.table_names import canonical
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store.messages.peek import encoded

_LARGEST = 2**63
_FASTEST = 2**31


class Captures(Base):
    """The calls about sources that capture tables. `ref` is a source's name or its id."""

    async def pause_source(self, ref: str) -> SourceInfo:
        """Stop capturing until `resume_source`. Meanwhile the server keeps all WAL that is not captured yet.

        Returns:
            The source as it is now. Raises `UnknownSource`, or `InvalidInput` for one that captures
            nothing.
        """
        there, _ = await self._capture(ref)
        await store.pause_capture(self._database, there.id, paused=True)
        return await store.source(self._database, there.id)

    async def resume_source(self, ref: str, *, anew: bool = False) -> SourceInfo:
        """Capture again, from where it was paused.

        Args:
            anew: start over instead, after the slot was lost or on another server. It makes a new
                slot (a given one stays) and backfills all tables. In mode `changes` each row is
                published once more, as a read. Rows deleted in the meantime are not reported.

        Returns:
            The source as it is now. Raises `UnknownSource`, or `InvalidInput` for one that captures
            nothing.
        """
        there, spec = await self._capture(ref)
        if anew:
            async with self._database.transaction() as connection:
                await store.reset_capture(connection, there.id)
                for table in spec.tables:
                    await store.start_backfill(connection, there.id, table)
        else:
            await store.pause_capture(self._database, there.id, paused=False)
        return await store.source(self._database, there.id)

    async def check_source(self, ref: str) -> list[Finding]:
        """Check that a source's database has everything that capturing its tables requires. Changes nothing.

        Returns:
            All findings, good and bad. Raises `UnknownSource`, or `InvalidInput` for one that
            captures nothing.
        """
        there, spec = await self._capture(ref)
        found = await self._findings(spec, there.id)
        capture = there.capture
        if capture is not None and capture.state == "stopped" and capture.reason is not None:
            found.append(
                Finding(what="capture", level="error", told=f"It has stopped. {capture.reason}", mend=capture.mend)
            )
        return found

    async def check_spec(self, spec: PostgresSpec) -> list[Finding]:
        """Run the same checks for a source that does not exist yet, or for other settings of an existing one."""
        try:
            there: SourceInfo | None = await store.source_with_secrets(self._database, spec.name)
        except UnknownSource:
            there = None
        return await self._findings(checked_database(spec, there), str(uuid4()) if there is None else there.id)

    async def _findings(self, spec: PostgresSpec, id: str) -> list[Finding]:  # noqa: A002 - the record's word
        from headrace.sources.postgres.database.checks import check
        from headrace.sources.postgres.database.slots import slot_name

        return await check(self._dsn(spec), spec, slot_name(spec.name, id))

    def _dsn(self, spec: PostgresSpec) -> str:
        """The URL of the database that is captured."""
        return spec.database or self._database.dsn

    async def _capture(self, ref: str) -> tuple[SourceInfo, PostgresSpec]:
        """The source, with its secrets, and its settings. Raises `InvalidInput` if it captures nothing."""
        there = await store.source_with_secrets(self._database, ref)
        spec = stored_spec(there)
        if not isinstance(spec, PostgresSpec):
            raise InvalidInput(f"The source {there.name!r} is of the kind {there.kind!r}, and captures no table.")
        return there, spec

    # --- backfills

    async def start_backfill(
        self, ref: str, tables: Sequence[str] | None = None, where: Where = None, rate: int | None = None
    ) -> list[BackfillInfo]:
        """Start backfills, which read tables from their first row while changes go on.

        A row never overtakes a newer change.

        Args:
            tables: which of the source's tables. None for all that are not being backfilled already.
            where: a condition on the rows' columns, such as `data.record.total > 100`. None for all rows.
            rate: maximum rows per second. None for the source's setting.

        Returns:
            The backfills, one for each table. The process that captures the source starts them.

        Raises:
            UnknownSource.
            InvalidFilter: an invalid condition.
            InvalidInput: a table that the source doesn't capture.
            InUse: a table is being backfilled already. Then none is started.
        """
        there, spec = await self._capture(ref)
        condition = condition_of(where)
        if rate is not None and not 1 <= rate < _FASTEST:
            raise InvalidInput(f"rate={rate} must be from 1 to {_FASTEST - 1:,} rows a second.")
        chosen = spec.tables if tables is None else tuple(dict.fromkeys(map(canonical, tables)))
        for table in chosen:
            if table not in spec.tables:
                raise InvalidInput(
                    f"The source {there.name!r} has no table {table!r}; it has {', '.join(spec.tables)}."
                )
        if condition is not None:
            await self._readable(spec, chosen, condition)
        text = encoded(condition)
        async with self._database.transaction() as connection:
            begun = {table: await store.start_backfill(connection, there.id, table, text, rate) for table in chosen}
            busy = [table for table, id_ in begun.items() if id_ is None]
            if busy and (tables is not None or len(busy) == len(chosen)):
                raise InUse(
                    f"A backfill of {', '.join(busy)} waits or is under way: let it end, or cancel it with"
                    f" `headrace source backfill cancel {there.name}`."
                )
            made = set(begun.values())
            found = await store.backfills(connection, there.id)
        return [one for one in reversed(found) if one.id in made]

    async def _readable(self, spec: PostgresSpec, tables: Sequence[str], condition: Condition) -> None:
        """Raise `InvalidInput` if the condition can't select rows of these tables."""
        from headrace.sources.postgres.backfill.rows_where import check_condition
        from headrace.sources.postgres.connection.link import Link
        from headrace.sources.postgres.database.catalog import load_tables

        async with await Link.connect(self._dsn(spec), application_name="headrace admin") as link:
            for table in (await load_tables(link, tables)).values():
                check_condition(condition, table)

    async def backfills(self, ref: str | None = None) -> list[BackfillInfo]:
        """The last 100 backfills of a source, or of all sources, the newest first."""
        return await store.backfills(self._database, None if ref is None else (await self._capture(ref))[0].id)

    async def cancel_backfills(self, ref: str, id: str | None = None) -> int:  # noqa: A002
        """End a backfill by its id, or all of a source. Rows read so far stay. Returns how many it ended."""
        there, _ = await self._capture(ref)
        if id is not None:
            try:
                id = str(UUID(id))  # noqa: A001
            except ValueError:
                raise InvalidInput(
                    f"{id[:80]!r} is no backfill's id: `headrace source backfill ls` tells them."
                ) from None
        return await store.cancel_backfills(self._database, there.id, id)

    # --- changes that could not become messages

    async def failures(self, ref: str, *, above: int = 0, limit: int = 100) -> list[FailedChange]:
        """Changes that could not become messages, with an id above `above`, the oldest first, at most `limit`."""
        check_limit(limit)
        there, _ = await self._capture(ref)
        return await store.capture_failures(self._database, there.id, above=above, limit=limit)

    async def retry_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Request that the capturing process retries failed changes, all or these. Those that succeed are published.

        Returns:
            How many will be tried.
        """
        there, _ = await self._capture(ref)
        return await store.retry_capture_failures(self._database, there.id, _checked(ids))

    async def drop_failures(self, ref: str, ids: Sequence[int] | None = None) -> int:
        """Delete failed changes, all or these. They never reach a stream. Returns how many."""
        there, _ = await self._capture(ref)
        return await store.drop_capture_failures(self._database, there.id, _checked(ids))


def _checked(ids: Sequence[int] | None) -> list[int] | None:
    for one in ids or ():
        if not isinstance(one, int) or isinstance(one, bool) or not 1 <= one < _LARGEST:
            raise InvalidInput(f"{one!r} can't be a failed change's id: these are whole numbers, and the first is 1.")
    return None if ids is None else list(ids)
