"""Streams and their messages, of a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.client.base import Base, Listed, Message, Told, condition, decoded, one_or_several
from headrace.client.errors import AlreadyThere, NotThere
from headrace.client.request import JUDGING, delete, get, iso, patch, post
from headrace.model.errors import InvalidInput
from headrace.model.records import Standing, StoredMessage, StreamInfo
from headrace.model.specs import StreamSpec

if TYPE_CHECKING:
    from headrace.app.admin.given import Filter, Where


class _Standing(msgspec.Struct, kw_only=True):
    """Where a consumer stands with a message, as the API tells it."""

    consumer_id: str
    consumer: str
    seq: int
    state: Any
    deliver_count: int | None = None
    not_visible_until: datetime | None = None
    owner: str | None = None


class Streams(Base):
    """The calls about streams; see `headrace.app.admin`."""

    async def streams(self) -> list[StreamInfo]:
        """All streams, by name."""
        found = await self._ask(get("streams"), Listed[Told[StreamInfo]])
        return [one.info for one in found.data]

    async def stream(self, name: str) -> StreamInfo:
        """One stream."""
        return (await self._ask(get("streams", name), Told[StreamInfo])).info

    async def create_stream(self, spec: StreamSpec | str) -> bool:
        """Create a stream; one that exists with these very settings is left as it is. Returns whether it is new."""
        spec = StreamSpec(name=spec) if isinstance(spec, str) else spec
        try:
            await self._send(post("streams", **_given(spec)))
        except AlreadyThere:
            there = _stream_spec(await self.stream(spec.name))
            refuse_changes(msgspec.to_builtins(there), msgspec.to_builtins(spec), f"The stream {spec.name!r}")
            return False
        return True

    async def edit_stream(self, name: str, /, **changes: Any) -> StreamSpec:
        """Change what a stream keeps. Returns the settings as they are now."""
        changed = await self._ask(patch("streams", name, **changes), Told[StreamInfo])
        return _stream_spec(changed.info)

    async def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream with its messages and its consumers; by `force` also if workers are at one of these."""
        await self._send(delete("streams", name, force=force or None))

    async def messages(
        self, stream: str, *, filter: Filter = None, where: Where = None,  # noqa: A002 - the word of the field
        start_seq: int | None = None, limit: int = 10, newest: bool = False,
    ) -> list[StoredMessage]:  # fmt: skip
        """Messages of a stream, in the order of seq: the first ones from `start_seq` on, or the `newest`; at most `limit`."""
        request = get(
            "streams", stream, "messages", wait=JUDGING, limit=limit, sort="seq_desc" if newest else None,
            key_pattern=one_or_several(filter), where=condition(where), start_seq=start_seq,
        )  # fmt: skip
        found = [_stored(one) for one in (await self._ask(request, Listed[Message])).data]
        return found[::-1] if newest else found

    async def message(self, stream: str, key: str) -> StoredMessage | None:
        """The latest message of a key; None if there is none."""
        try:
            return _stored(await self._ask(get("streams", stream, "messages", key), Message))
        except NotThere:
            return None

    async def standing(self, stream: str, key: str) -> tuple[int, list[Standing]] | None:
        """The seq of a key's latest message, and where each consumer stands with it; None if the key has no message."""
        try:
            found = await self._ask(get("streams", stream, "messages", key, "consumer_info"), Listed[_Standing])
        except NotThere:
            return None
        standings = [_standing(one) for one in found.data]
        if found.data:
            return found.data[0].seq, standings
        message = await self.message(stream, key)  # nobody stands anywhere
        return None if message is None else (message.seq, standings)

    async def republish(
        self, stream: str, target: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Publish messages of a stream to another one, or to itself. Returns how many."""
        chosen = selection(filter, where, start_seq, end_seq, start_time, end_time, dry_run)
        return await self._count(
            post("streams", stream, "republish", wait=JUDGING, target=target, **chosen), "published"
        )

    async def send(
        self, stream: str, key: str, data: str, headers: str | None = None, *,
        message_id: str | None = None, deliver_at: datetime | None = None,
    ) -> int | None:  # fmt: skip
        """Publish one message. Its seq isn't told."""
        message = _outgoing(key, data, headers)
        if message_id is not None:
            message["message_id"] = message_id
        if deliver_at is not None:
            message["deliver_at"] = iso(deliver_at)
        await self._send(post("streams", stream, "messages", **message))
        return None

    async def send_many(
        self, stream: str, keys: Sequence[str], data: Sequence[str], headers: Sequence[str | None]
    ) -> int:
        """Publish messages in their order, all or none; at most 10,000. Returns how many were published."""
        if not keys:
            return 0
        messages = [_outgoing(*one) for one in zip(keys, data, headers, strict=True)]
        return await self._count(post("streams", stream, "messages", messages=messages), "published")


def selection(
    filter_: Filter, where: Where, start_seq: int | None, end_seq: int | None, start_time: datetime | None,
    end_time: datetime | None, dry_run: bool,
) -> dict[str, Any]:  # fmt: skip
    """Which messages, as a body says it."""
    return {
        "filter": one_or_several(filter_), "where": condition(where), "start_seq": start_seq, "end_seq": end_seq,
        "start_time": start_time and iso(start_time), "end_time": end_time and iso(end_time), "dry_run": dry_run or None,
    }  # fmt: skip


def refuse_changes(there: dict[str, Any], given: dict[str, Any], what: str) -> None:
    """Raise `InvalidInput` if what is to be created exists with settings that differ."""
    differing = [
        f"{name} is {old!r} and not {given[name]!r}"
        for name, old in there.items()
        if name in given and old != given[name]
    ]
    if differing:
        raise InvalidInput(
            f"{what} exists with other settings ({', '.join(differing)}): edit it, or take another name."
        )


def _given(spec: StreamSpec) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    plain = StreamSpec(name=spec.name)
    return {
        name: value
        for name, value in msgspec.structs.asdict(spec).items()
        if name == "name" or value != getattr(plain, name)
    }


def _stream_spec(info: StreamInfo) -> StreamSpec:
    return msgspec.convert({name: getattr(info, name) for name in StreamSpec.__struct_fields__}, StreamSpec)


def _stored(message: Message) -> StoredMessage:
    return StoredMessage(
        seq=message.seq, key=message.key, data=decoded(message.data), headers=decoded(message.headers), created_at=message.inserted_at
    )  # fmt: skip


def _standing(told: _Standing) -> Standing:
    return Standing(
        consumer_id=told.consumer_id, consumer=told.consumer, state=told.state, attempts=told.deliver_count,
        until=told.not_visible_until, owner=told.owner,
    )  # fmt: skip


def _outgoing(key: str, data: str, headers: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"key": key, "data": msgspec.Raw(data.encode())}
    if headers is not None:
        message["headers"] = msgspec.Raw(headers.encode())
    return message
