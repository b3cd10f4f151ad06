"""Streams: list, create, edit and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import changed, check_limit, refuse_changes
from headrace.admin.watching.recording import differing, settings_of_stream
from headrace.model.errors import ConfigurationError, InUse
from headrace.model.pages import Page, follow, listing
from headrace.model.records import StreamInfo
from headrace.model.specs import StreamSpec
from headrace.model.watching.audit import Change


class Streams(Base):
    """The calls about streams."""

    @listing
    async def streams(self, *, limit: int | None = None) -> AsyncIterator[list[StreamInfo]]:
        """List streams by name, at most `limit`. None for all."""
        check_limit(limit)

        async def read(after: str | None, limit: int) -> Page[StreamInfo]:
            return await store.streams(self._database, after=after, limit=limit)

        async for page in follow(read, lambda stream: stream.name, limit=limit):
            yield page

    async def stream(self, name: str) -> StreamInfo:
        """Return one stream."""
        return await store.stream(self._database, name)

    async def create_stream(self, spec: StreamSpec | str, *, database: str | None = None) -> bool:
        """Create a stream. A stream that exists with equal settings stays as it is.

        Args:
            database: the name of a further database of a server, in which it is created. Only through a server, with
                `headrace.client.Remote`.

        Returns:
            Whether it is new.

        Raises:
            InvalidInput: it exists with other settings, or the name is invalid.
            UnknownDatabase: the server has no database of this name.
        """
        spec = StreamSpec(name=spec) if isinstance(spec, str) else spec
        if database is not None:
            raise ConfigurationError(
                f"The stream {spec.name!r} can be created in the database {database!r} through a server only. Name the server, or"
                " connect to that database itself."
            )
        change = _change_of(spec.name, "create", settings=settings_of_stream(spec))

        async def create(connection: store.Executor) -> bool:
            _, new = await store.declare_stream(connection, spec)
            change.skipped = not new
            return new

        new = await self._change(change, create)
        refuse_changes(_stream_spec(await self.stream(spec.name)), spec, f"The stream {spec.name!r}")
        return new

    async def edit_stream(self, name: str, /, **changes: Any) -> StreamSpec:
        """Change a stream's settings. `changes` are settings of `StreamSpec`. Durations may be text such as "30d".

        Returns:
            The settings as they are now. Raises `ConfigurationError` for those that contradict each
            other.
        """
        change = _change_of(name, "edit")

        async def edit(connection: store.Executor) -> StreamSpec:
            await store.lock_declarations(connection)
            before = _stream_spec(await store.stream(connection, name))
            spec = changed(before, changes)
            differences = differing(before, spec)
            change.details, change.skipped = {"changes": differences}, not differences
            await store.edit_stream(connection, spec)
            return spec

        return await self._change(change, edit)

    async def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream with its messages and its consumers.

        With `force`, it is also deleted while workers or webhooks use it.

        Raises:
            InUse: workers or webhooks use it, a publisher keeps its transaction open, or a source
                captures tables into it. `force` does not apply to such a source, since its
                replication slot would be left behind.
        """
        await self._delete_stream(name, force=force, end_leases=force)

    async def _delete_stream(self, name: str, *, force: bool, end_leases: bool) -> None:
        for source in await store.sources(self._database):
            if source.stream == name and source.kind == "postgres":
                raise InUse(
                    f"The source {source.name!r} captures tables into the stream {name!r}, and has a replication slot. Remove the"
                    f" source first, with `headrace source rm {source.name}`."
                )
        await self._change(
            _change_of(name, "delete", force=force or end_leases),
            lambda connection: store.delete_stream(connection, name, force=force, end_leases=end_leases),
        )


async def delete_stream(admin: Streams, name: str, *, force: bool, end_leases: bool) -> None:
    """Delete a stream with its messages and its consumers.

    Args:
        force: also delete the webhooks that fill it.
        end_leases: delete it also while workers use its consumers. Their leases end.

    Raises:
        InUse: see `Streams.delete_stream`.
    """
    await admin._delete_stream(name, force=force, end_leases=end_leases)


def _change_of(name: str, action: str, **details: Any) -> Change:
    return Change(action=f"stream.{action}", kind="stream", name=name, stream=name, details=details)


def _stream_spec(info: StreamInfo) -> StreamSpec:
    return StreamSpec(**{setting: getattr(info, setting) for setting in StreamSpec.__struct_fields__})
