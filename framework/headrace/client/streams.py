"""Calls about the streams and messages of a server."""

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
    from headrace.admin.validation import Filter, Where


class _Standing(msgspec.Struct, kw_only=True):
    """The state of a message in a consumer, in the API's answer."""

    consumer_id: str
    consumer: str
    seq: int
    state: Any
    deliver_count: int | None = None
    not_visible_until: datetime | None = None
    owner: str | None = None


class Streams(Base):
    """The calls about streams. See `headrace.admin`."""

    async def streams(self) -> list[StreamInfo]:
        """List all streams by name."""
        found = await self._ask(get("streams"), Listed[Told[StreamInfo]])
        return [one.info for one in found.data]

    async def stream(self, name: str) -> StreamInfo:
        """Return one stream."""
        return (await self._ask(get("streams", name), Told[StreamInfo])).info

    async def create_stream(self, spec: StreamSpec | str) -> bool:
        """Create a stream. Returns whether it is new. A stream that exists with equal settings
        is left as it is."""
        spec = StreamSpec(name=spec) if isinstance(spec, str) else spec
        try:
            await self._send(post("streams", **_given(spec)))
        except AlreadyThere:
            there = _stream_spec(await self.stream(spec.name))
            refuse_changes(msgspec.to_builtins(there), msgspec.to_builtins(spec), f"The stream {spec.name!r}")
            return False
        return True

    async def edit_stream(self, name: str, /, **changes: Any) -> StreamSpec:
        """Change a stream's settings. Returns the new settings."""
        changed = await self._ask(patch("streams", name, **changes), Told[StreamInfo])
        return _stream_spec(changed.info)

    async def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream with its messages and consumers. With `force` it is deleted even while
        workers use a consumer."""
        await self._send(delete("streams", name, force=force or None))

    async def messages(
        self, stream: str, *, filter: Filter = None, where: Where = None,  # noqa: A002 - the word of the field
        start_seq: int | None = None, limit: int = 10, newest: bool = False,
    ) -> list[StoredMessage]:  # fmt: skip
        """List messages in seq order, at most `limit`. They are the first from `start_seq` on,
        or the last if `newest`."""
        request = get(
            "streams", stream, "messages", wait=JUDGING, limit=limit, sort="seq_desc" if newest else None,
            key_pattern=one_or_several(filter), where=condition(where), start_seq=start_seq,
        )  # fmt: skip
        found = [_stored(one) for one in (await self._ask(request, Listed[Message])).data]
        return found[::-1] if newest else found

    async def message(self, stream: str, key: str) -> StoredMessage | None:
        """Return the latest message of a key, or None if it has no message."""
        try:
            return _stored(await self._ask(get("streams", stream, "messages", key), Message))
        except NotThere:
            return None

    async def standing(self, stream: str, key: str) -> tuple[int, list[Standing]] | None:
        """Return the seq of a key's latest message and its state in each consumer. None if the
        key has no message."""
        try:
            found = await self._ask(get("streams", stream, "messages", key, "consumer_info"), Listed[_Standing])
        except NotThere:
            return None
        standings = [_standing(one) for one in found.data]
        if found.data:
            return found.data[0].seq, standings
        message = await self.message(stream, key)  # the stream has no consumers
        return None if message is None else (message.seq, standings)

    async def republish(
        self, stream: str, target: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Publish messages of a stream again, to another stream or to the same one. Returns the
        number of messages."""
        chosen = selection(filter, where, start_seq, end_seq, start_time, end_time, dry_run)
        return await self._count(
            post("streams", stream, "republish", wait=JUDGING, target=target, **chosen), "published"
        )

    async def send(
        self, stream: str, key: str, data: str, headers: str | None = None, *,
        message_id: str | None = None, deliver_at: datetime | None = None,
    ) -> int | None:  # fmt: skip
        """Publish one message. Returns None, since the server doesn't return its seq."""
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
        """Publish up to 10,000 messages in order, all or none. Returns how many were published."""
        if not keys:
            return 0
        messages = [_outgoing(*one) for one in zip(keys, data, headers, strict=True)]
        return await self._count(post("streams", stream, "messages", messages=messages), "published")


def selection(
    filter_: Filter, where: Where, start_seq: int | None, end_seq: int | None, start_time: datetime | None,
    end_time: datetime | None, dry_run: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the members of a request body that select messages."""
    return {
        "filter": one_or_several(filter_), "where": condition(where), "start_seq": start_seq, "end_seq": end_seq,
        "start_time": start_time and iso(start_time), "end_time": end_time and iso(end_time), "dry_run": dry_run or None,
    }  # fmt: skip


def refuse_changes(there: dict[str, Any], given: dict[str, Any], what: str) -> None:
    """Raise `InvalidInput` if the existing object has other settings than the one to be created."""
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
    """Return the settings that differ from their defaults."""
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
