"""Sources: read, create, edit, delete."""

from __future__ import annotations

from typing import Any

from headrace import store
from headrace.admin.captures import Captures
from headrace.admin.source_settings import (
    Spec,
    checked_database,
    differing,
    edited,
    kind_of,
    stored_spec,
)
from headrace.model.errors import ConfigurationError, HeadraceError, UnknownSource
from headrace.model.sources import SlotRemains, SourceExists, SourceInfo
from headrace.model.specs import StreamSpec
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store.catalog.states import HIDDEN


class Sources(Captures):
    """The calls about sources. `ref` is a source's name or its id."""

    async def sources(self) -> list[SourceInfo]:
        """All sources, by name."""
        return await store.sources(self._database)

    async def source(self, ref: str) -> SourceInfo:
        """One source. Raises `UnknownSource`."""
        return await store.source(self._database, ref)

    async def create_source(self, spec: Spec) -> bool:
        """Create a webhook source, or one that captures tables. An existing one with the same settings stays as it is.

        For captured tables, the stream is created as well, unless it exists. This does not check
        whether the tables can be captured. Use `check_spec` for that. The capture starts as soon as
        a capturing process runs.

        Returns:
            Whether it is new.

        Raises:
            SourceExists: it exists with other settings.
            UnknownStream: create the stream first, for a webhook source.
            ConfigurationError: in mode `rows`, the stream exists and keeps more than one message per key.
        """
        async with self._database.transaction() as connection:
            if isinstance(spec, PostgresSpec):
                await make_stream(connection, spec)
            return await make_source(connection, spec)

    async def edit_source(self, ref: str, /, **changes: Any) -> SourceInfo:
        """Change a source. Servers apply it within two seconds, and so does the process that captures.

        Args:
            changes: settings of `WebhookSpec` or `PostgresSpec`, except its name and its stream,
                and for captured tables except its mode, slot and publication. The database URL may
                change, but it must lead to the same database.

        Returns:
            The source as it is now.

        Raises:
            InvalidInput: a setting that can't be changed.
            ConfigurationError: settings that contradict each other.
            UnknownSource.
        """
        there = await store.source_with_secrets(self._database, ref)
        async with self._database.transaction() as connection:
            await change_source(connection, there, edited(there, changes))
        return await self.source(there.id)

    async def delete_source(self, ref: str, *, force: bool = False) -> str | None:
        """Delete a source. Later deliveries to it are refused. Published messages stay.

        For captured tables, the replication slot and the publication that Headrace made for it are
        dropped first.

        Args:
            force: delete it even if they can't be dropped. A slot that is left behind keeps WAL
                until the disk is full.

        Returns:
            None. With `force`, a sentence about what was left behind, and the statements that drop it.

        Raises:
            SlotRemains: they can't be dropped, and nothing was removed.
            UnknownSource.
        """
        there = await store.source_with_secrets(self._database, ref)
        spec = stored_spec(there)
        left = None
        if isinstance(spec, PostgresSpec) and not (spec.slot and spec.publication):
            left = await self._let_go(there, spec, force=force)
        await store.delete_source(self._database, there.id)
        return left

    async def _let_go(self, there: SourceInfo, spec: PostgresSpec, *, force: bool) -> str | None:
        """Drop the slot and the publication that Headrace made. Returns what `force` left behind."""
        from headrace.sources.postgres.database.slots import slot_name

        name = slot_name(there.name, there.id)
        paused = there.capture is not None and there.capture.paused_at is not None
        await store.pause_capture(self._database, there.id, paused=True)
        try:
            await _drop(self._dsn(spec), spec, name, there.id)
        except HeadraceError as error:
            told = f"{error} What it has there can be dropped by hand: {_statements(spec, name)}"
            if force:
                return f"Something of the source {there.name!r} may be left at its database, and keep WAL there. {told}"
            if not paused:
                await store.pause_capture(self._database, there.id, paused=False)
            raise SlotRemains(
                f"The source {there.name!r} is not removed, since its slot and publication can't be dropped. {told} Then remove it"
                " with --force."
            ) from error
        return None


async def make_stream(executor: store.Executor, spec: PostgresSpec) -> None:
    """Create the stream of a capture, unless it exists. Raises `ConfigurationError` if it must hold rows but can't."""
    await store.create_stream(executor, StreamSpec(name=spec.stream, one_message_per_key=spec.mode == "rows"))
    if spec.mode == "rows" and not (await store.stream(executor, spec.stream)).one_message_per_key:
        raise ConfigurationError(
            f"The stream {spec.stream!r} keeps every message, and rows need one that keeps the last one of each key, which can't be changed:"
            " take another stream, or none that exists, and it will be made so."
        )


async def make_source(executor: store.Executor, spec: Spec) -> bool:
    """Create a source. Returns whether it is new. Raises `SourceExists` if one of that name has other settings."""
    if isinstance(spec, PostgresSpec) and HIDDEN in (spec.database or ""):
        spec = checked_database(spec, await _known(executor, spec.name))
    if await store.create_source(executor, spec.name, kind_of(spec), spec.stream, spec.settings()):
        return True
    differences = differing(await store.source_with_secrets(executor, spec.name), spec)
    if differences:
        told = ", ".join(f"{name} is {old!r} and not {new!r}" for name, (old, new) in differences.items())
        raise SourceExists(
            f"The source {spec.name!r} exists with other settings ({told}): edit it, or take another name."
        )
    return False


async def change_source(connection: store.Executor, there: SourceInfo, spec: Spec) -> None:
    """Replace all settings of a source, in a transaction. Newly captured tables are backfilled."""
    await store.edit_source(connection, there.id, spec.settings())
    if not isinstance(spec, PostgresSpec):
        return
    await store.interrupt_capture(connection, there.id)
    begun = there.capture is not None and there.capture.position is not None  # otherwise all tables are yet to be read
    if spec.backfill and begun:
        for table in spec.tables:
            if table not in there.settings["tables"]:
                await store.start_backfill(connection, there.id, table)


async def _known(executor: store.Executor, name: str) -> SourceInfo | None:
    try:
        return await store.source_with_secrets(executor, name)
    except UnknownSource:
        return None


async def _drop(dsn: str, spec: PostgresSpec, name: str, source_id: str) -> None:
    from headrace.sources.postgres.capture.preparing import application_name
    from headrace.sources.postgres.connection.link import Link
    from headrace.sources.postgres.database.slots import drop_publication, drop_slot

    async with await Link.connect(dsn, application_name="headrace admin") as link:
        if spec.slot is None:
            await drop_slot(link, name, application_name(source_id))
        if spec.publication is None:
            await drop_publication(link, name)


def _statements(spec: PostgresSpec, name: str) -> str:
    """The SQL statements that drop the slot and the publication by hand."""
    slot = f"select pg_drop_replication_slot('{name}');" if spec.slot is None else ""
    publication = f'drop publication if exists "{name}";' if spec.publication is None else ""
    return " ".join(part for part in (slot, publication) if part)
