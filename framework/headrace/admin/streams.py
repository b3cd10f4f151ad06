"""Streams and their messages: read, create, edit, republish, delete."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import (
    Filter,
    Where,
    changed,
    check_limit,
    check_seq,
    condition_of,
    filters_of,
    refuse_changes,
    selection_of,
)
from headrace.model.errors import InUse
from headrace.model.keys import check_key
from headrace.model.records import Standing, StoredMessage, StreamInfo
from headrace.model.specs import StreamSpec


class Streams(Base):
    """The calls about streams."""

    async def streams(self) -> list[StreamInfo]:
        """All streams, by name."""
        return await store.streams(self._database)

    async def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return await store.stream(self._database, name)

    async def create_stream(self, spec: StreamSpec | str) -> bool:
        """Create a stream. An existing one with the same settings is left as it is.

        Returns:
            Whether it is new.

        Raises:
            InvalidInput: it exists with other settings, or the name is invalid.
        """
        spec = StreamSpec(name=spec) if isinstance(spec, str) else spec
        _, new = await store.declare_stream(self._database, spec)
        refuse_changes(_stream_spec(await self.stream(spec.name)), spec, f"The stream {spec.name!r}")
        return new

    async def edit_stream(self, name: str, /, **changes: Any) -> StreamSpec:
        """Change a stream's settings. `changes` are settings of `StreamSpec`. Durations may be text such as "30d".

        Returns:
            The settings as they are now. Raises `ConfigurationError` for those that contradict each
            other.
        """
        spec = changed(_stream_spec(await self.stream(name)), changes, fixed=("name",))
        await store.edit_stream(self._database, spec)
        return spec

    async def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream with its messages and its consumers.

        With `force`, it is also deleted while workers work on a consumer or webhooks deliver to it.

        Raises:
            InUse: workers or webhooks use it, a publisher keeps its transaction open, or tables are
                captured into it. `force` does not apply to captured tables, since their replication
                slots would be left behind.
        """
        for source in await store.sources(self._database):
            if source.stream == name and source.kind == "postgres":
                raise InUse(
                    f"The source {source.name!r} captures tables into the stream {name!r}, and has a replication slot: remove it first,"
                    f" with `headrace source rm {source.name}`."
                )
        await store.delete_stream(self._database, name, force=force)

    async def messages(
        self, stream: str, *, filter: Filter = None, where: Where = None,  # noqa: A002 - the word of the field
        start_seq: int | None = None, limit: int = 10, newest: bool = False,
    ) -> list[StoredMessage]:  # fmt: skip
        """Messages in the order of seq: at most `limit`, the first ones from `start_seq` on, or the `newest`."""
        filters, condition = filters_of(filter), condition_of(where)
        check_seq("start_seq", start_seq)
        check_limit(limit)
        async with self._bounded(condition) as executor:
            return await store.messages(
                executor, stream, filters=filters, where=condition, start_seq=start_seq, limit=limit, newest=newest
            )

    async def message(self, stream: str, key: str) -> StoredMessage | None:
        """The latest message of a key, or None. Without `one_message_per_key`, the stream is searched from its end."""
        check_key(key)
        async with self._bounded(None) as executor:
            return await store.latest(executor, stream, key)

    async def standing(self, stream: str, key: str) -> tuple[int, list[Standing]] | None:
        """The seq of a key's latest message, and each consumer's state for it. None if the key has no message."""
        check_key(key)
        async with self._bounded(None) as executor:
            return await store.standing(executor, stream, key)

    async def republish(
        self, stream: str, target: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Publish messages of a stream again, to another stream or to the same one, in their order, all or none.

        They are new messages there, with new seqs and the current time. Bounds are inclusive.
        `dry_run` only counts the matches.

        Returns:
            How many were published.
        """
        selection = selection_of(filter, where, start_seq, end_seq, start_time, end_time)
        async with self._bounded(selection.where) as executor:
            return await store.republish(executor, stream, target, selection, dry_run=dry_run)


def _stream_spec(info: StreamInfo) -> StreamSpec:
    return StreamSpec(**{setting: getattr(info, setting) for setting in StreamSpec.__struct_fields__})
