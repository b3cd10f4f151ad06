"""Sources: list, create, edit and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from uuid import UUID

from headrace import store
from headrace.admin.captures import Captures
from headrace.admin.source_settings import (
    Spec,
    differing,
    edited,
    kind_of,
    stored_spec,
    with_password,
)
from headrace.admin.validation import MAX_ANSWER_BYTES, check_limit, refuse
from headrace.admin.watching.recording import settings_of_source
from headrace.model.errors import ConfigurationError, HeadraceError, InvalidInput, UnknownSource, UnknownStream
from headrace.model.pages import Page, follow, listing
from headrace.model.sources import SlotRemains, SourceInfo, stream_in_use
from headrace.model.specs import StreamSpec
from headrace.model.text.masking import HIDDEN
from headrace.model.watching.operations import WebhookDelivery
from headrace.sources.postgres import table_names
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.spec import PostgresSpec


class Sources(Captures):
    """The calls about sources. `ref` is a source's name or its id."""

    @listing
    async def sources(self, *, limit: int | None = None) -> AsyncIterator[list[SourceInfo]]:
        """List sources by name, at most `limit`. None for all."""
        check_limit(limit)

        async def read(after: str | None, limit: int) -> Page[SourceInfo]:
            return await store.sources(self._database, after=after, limit=limit, max_bytes=MAX_ANSWER_BYTES)

        async for page in follow(read, lambda source: source.name, limit=limit):
            yield page

    async def source(self, ref: str) -> SourceInfo:
        """Return one source. Raises `UnknownSource`."""
        return await store.source(self._database, ref)

    async def deliveries(self, ref: str, *, limit: int = 50) -> list[WebhookDelivery]:
        """Return the last deliveries to a webhook, accepted and refused, the newest first, at most `limit`. At most 100
        are kept, and 20 of each second.

        Raises:
            UnknownSource.
            InvalidInput: it is no webhook.
        """
        check_limit(limit)
        source = await store.source(self._database, ref)
        if source.kind != "webhook":
            raise InvalidInput(f"The source {source.name!r} captures tables. Only webhooks have deliveries.")
        return await store.deliveries(self._database, UUID(source.id), limit=limit)

    async def create_source(self, spec: Spec, *, into_existing: bool = False) -> bool:
        """Create a webhook source, or a source that captures tables.

        A source that exists with equal settings stays as it is. The stream of captured tables is
        created unless it exists. Use `check_spec` to check whether the tables can be captured. The
        capture starts as soon as a capturing process runs.

        Args:
            into_existing: capture tables into a stream that has messages or consumers already, which get the
                changes too.

        Returns:
            Whether it is new.

        Raises:
            SourceExists: it exists with other settings.
            UnknownStream: the stream of a webhook source doesn't exist.
            ConfigurationError: in mode `rows`, the stream exists without `one_message_per_key`. Or a setting names a column
                that its table does not have.
            InvalidInput: the stream has messages or consumers, without `into_existing`.
        """
        if isinstance(spec, PostgresSpec) and await existing_source(self._database, spec.name) is None:
            if not into_existing:
                await self._refuse_stream_in_use(spec)
            await refuse_missing_columns(self._given_database(spec) or spec.database or self._database.dsn, spec)
        settings = settings_of_source(spec.settings())
        change = self._change_of("create", spec.name, spec.stream, source_kind=kind_of(spec), settings=settings)

        async def create(connection: store.Executor) -> bool:
            if isinstance(spec, PostgresSpec):
                await make_stream(connection, spec)
            new = await make_source(connection, spec)
            change.skipped = not new
            return new

        return await self._change(change, create)

    async def _refuse_stream_in_use(self, spec: PostgresSpec) -> None:
        """Raise `InvalidInput` if a new source would capture into a stream that is in use."""
        try:
            stream = await store.stream(self._database, spec.stream)
        except UnknownStream:
            return
        if stream.messages or stream.consumers:
            about = stream_in_use(stream.name, stream.messages, stream.consumers, backfill=spec.backfill)
            raise InvalidInput(
                f"{about} Give the name of a new stream, or into_existing to capture into this one.",
                field="into_existing",
            )

    async def edit_source(self, ref: str, /, **changes: Any) -> SourceInfo:
        """Change a source. Servers and the capturing process use the new settings within two seconds.

        Args:
            changes: settings of `WebhookSpec` or `PostgresSpec`. Among `secrets`, "…" stands for the
                secrets that the source has. All can be changed, except its name and stream, and
                except the mode, slot and publication of captured tables. You can change the
                database URL, but it must lead to the same database.

        Returns:
            The source after the change.

        Raises:
            InvalidInput: a setting that can't be changed.
            ConfigurationError: settings that contradict each other, or name a column that its table does not have.
            UnknownSource.
        """
        source = await store.source_with_secrets(self._database, ref)
        change = self._change_of("edit", source.name, source.stream)
        wanted = edited(source, changes)
        if isinstance(wanted, PostgresSpec) and differing(source, wanted):
            await refuse_missing_columns(self._dsn(wanted), wanted)

        async def edit(connection: store.Executor) -> None:
            locked = await store.lock_source(connection, source.id)
            spec = edited(locked, changes)
            differences = differing(locked, spec)
            change.details, change.skipped = {"changes": differences}, not differences
            await change_source(connection, locked, spec)

        await self._change(change, edit)
        return await self.source(source.id)

    async def delete_source(self, ref: str, *, force: bool = False) -> str | None:
        """Delete a source. Later deliveries to it are refused. Published messages stay.

        The replication slot and the publication that Headrace created for captured tables are
        dropped first.

        Args:
            force: delete it even if they can't be dropped. A slot that is left behind keeps WAL
                until the disk is full.

        Returns:
            None. With `force`, a text about what was left behind, with the statements that drop it.

        Raises:
            SlotRemains: they can't be dropped. Nothing was deleted.
            UnknownSource.
        """
        source = await store.source_with_secrets(self._database, ref)
        spec = stored_spec(source)
        left = None
        if isinstance(spec, PostgresSpec) and not (spec.slot and spec.publication):
            left = await self._drop_slot_and_publication(source, spec, force=force)
        change = self._change_of("delete", source.name, source.stream, left=left)
        await self._change(change, lambda connection: store.delete_source(connection, source.id))
        if isinstance(spec, PostgresSpec) and spec.shared_slot is not None and left is None:
            # Two sources that are deleted at the same time each see the other one, and leave the slot to it.
            with suppress(HeadraceError):
                await self._drop(source, spec)
        return left

    async def _drop_slot_and_publication(self, source: SourceInfo, spec: PostgresSpec, *, force: bool) -> str | None:
        """Drop the slot and the publication that Headrace created. Returns what `force` left behind."""
        paused = source.capture is not None and source.capture.paused_at is not None
        await store.pause_capture(self._database, source.id, paused=True)
        try:
            await self._drop(source, spec)
        except HeadraceError as error:
            statements = await self._statements(source, spec)
            if force:
                return (
                    f"The slot and publication of the source {source.name!r} may still exist, and the slot keeps WAL. {error}"
                    f" Drop them with: {statements}"
                )
            if not paused:
                await store.pause_capture(self._database, source.id, paused=False)
            raise SlotRemains(
                f"The source {source.name!r} was not deleted, because its slot and publication can't be dropped. {error} Drop them"
                f" with: {statements} Then delete the source with --force."
            ) from error
        return None

    async def _drop(self, source: SourceInfo, spec: PostgresSpec) -> None:
        from headrace.sources.postgres.capture.preparation import drop_slot_and_publication
        from headrace.sources.postgres.connection.source_connection import SourceConnection

        async with await SourceConnection.connect(self._dsn(spec), application_name="headrace admin") as connection:
            await drop_slot_and_publication(self._database, connection, spec, source.name, source.id)

    async def _statements(self, source: SourceInfo, spec: PostgresSpec) -> str:
        """Return the SQL statements that drop the slot and the publication."""
        from headrace.sources.postgres.capture.preparation import shares_slot
        from headrace.sources.postgres.database.slots import slot_name

        name = slot_name(source.name, source.id)
        shared_slot = spec.shared_slot
        if shared_slot is not None and await shares_slot(self._database, shared_slot, source.id):
            slot = ""
        else:
            own = (
                name
                if shared_slot is None
                else slot_name(shared_slot, await store.shared_slot_id(self._database, shared_slot))
            )
            slot = f"select pg_drop_replication_slot('{own}');" if spec.slot is None else ""
        publication = f'drop publication if exists "{name}";' if spec.publication is None else ""
        return " ".join(part for part in (slot, publication) if part)


async def make_stream(executor: store.Executor, spec: PostgresSpec) -> None:
    """Create the stream of a capture unless it exists. Raises `ConfigurationError` if it can't hold rows."""
    await store.create_stream(executor, StreamSpec(name=spec.stream, one_message_per_key=spec.mode == "rows"))
    if spec.mode == "rows" and not (await store.stream(executor, spec.stream)).one_message_per_key:
        raise ConfigurationError(
            f"The stream {spec.stream!r} keeps every message, but mode='rows' needs a stream with one_message_per_key. This setting"
            " can't be changed. Choose another stream, or a new name to create one."
        )


async def make_source(executor: store.Executor, spec: Spec) -> bool:
    """Create a source. Returns whether it is new. Raises `SourceExists` if one of that name has other settings."""
    _refuse_own_tables(spec)
    if isinstance(spec, PostgresSpec) and HIDDEN in (spec.database or ""):
        spec = with_password(spec, await existing_source(executor, spec.name))
    if await store.create_source(executor, spec.name, kind_of(spec), spec.stream, spec.settings()):
        return True
    refuse(differing(await store.source_with_secrets(executor, spec.name), spec), f"The source {spec.name!r}")
    return False


async def change_source(connection: store.Executor, source: SourceInfo, spec: Spec) -> None:
    """Replace all settings of a source, in a transaction. Newly captured tables are backfilled."""
    _refuse_own_tables(spec)
    await store.edit_source(connection, source.id, spec.settings())
    if not isinstance(spec, PostgresSpec):
        return
    await store.interrupt_capture(connection, source.id)
    # A capture that has not started yet backfills all tables when it starts.
    started = source.capture is not None and source.capture.position is not None
    if spec.backfill and started:
        for table in spec.tables:
            if table not in source.settings["tables"]:
                await store.start_backfill(connection, source.id, table)


def _refuse_own_tables(spec: Spec) -> None:
    for table in spec.tables if isinstance(spec, PostgresSpec) else ():
        if table_names.split(table)[0] in store.SCHEMAS:
            raise InvalidInput(
                f"The table {table} belongs to Headrace, whose tables hold secrets and can't be captured.",
                field="tables",
            )


async def refuse_missing_columns(database: SourceDatabase, spec: PostgresSpec) -> None:
    """Raise `ConfigurationError` if the settings name a column that their table does not have. Without the driver, which
    the capturing process has, nothing is refused.
    """
    if find_spec("psycopg") is not None:
        from headrace.sources.postgres.database import columns

        await columns.refuse_missing_columns(database, spec)


async def existing_source(executor: store.Executor, name: str) -> SourceInfo | None:
    """Return a source with its secrets, or None."""
    try:
        return await store.source_with_secrets(executor, name)
    except UnknownSource:
        return None
