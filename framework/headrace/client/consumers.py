"""Calls about the consumers of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.client.base import Base, Listed, Message, Told, condition, decoded, one_or_several
from headrace.client.errors import AlreadyThere, NotThere
from headrace.client.request import JUDGING, delete, get, iso, patch, post
from headrace.client.streams import refuse_changes, selection
from headrace.model import conditions
from headrace.model.durations import seconds
from headrace.model.errors import InvalidInput
from headrace.model.push import Push
from headrace.model.records import BlockedKey, ConsumerInfo, DeadLetter, PeekedMessage
from headrace.model.specs import Backoff, ConsumerSpec

if TYPE_CHECKING:
    from headrace.admin.validation import Filter, Where


class _Standing(msgspec.Struct, kw_only=True):
    """The state of a peeked message in a consumer."""

    state: Literal["in_flight", "parked", "blocked", "next"]
    deliver_count: int = 0
    not_visible_until: datetime | None = None
    owner: str | None = None
    lease_id: int | None = None
    held: int | None = None


class _Peeked(msgspec.Struct):
    message: Message
    info: _Standing


class _Letter(msgspec.Struct, kw_only=True):
    """A dead letter in the API's answer."""

    seq: int
    key: str
    data: msgspec.Raw
    headers: msgspec.Raw = msgspec.Raw(b"null")
    created_at: datetime
    attempts: int
    reason: str
    error: str | None = None
    traceback: str | None = None
    blocks: bool = False
    died_at: datetime


class Consumers(Base):
    """The calls about consumers. See `headrace.admin`."""

    async def create_consumer(self, spec: ConsumerSpec) -> bool:
        """Create a consumer. Returns whether it is new. A consumer that exists with equal
        settings is left as it is."""
        try:
            await self._send(post("streams", spec.stream, "consumers", **_given(spec)))
        except AlreadyThere:
            there = await self.consumer(spec.stream, spec.name)
            refuse_changes(there.settings, _told(spec), f"The consumer {spec.name!r} of the stream {spec.stream!r}")
            return False
        return True

    async def consumers(self, stream: str | None = None) -> list[ConsumerInfo]:
        """List the consumers of a stream, or of all streams, by name."""
        request = get("consumers") if stream is None else get("streams", stream, "consumers")
        return [one.info for one in (await self._ask(request, Listed[Told[ConsumerInfo]])).data]

    async def consumer(self, stream: str, name: str) -> ConsumerInfo:
        """Return one consumer."""
        return (await self._ask(get(*_place(stream, name)), Told[ConsumerInfo])).info

    async def edit_consumer(self, stream: str, name: str, /, **changes: Any) -> ConsumerSpec:
        """Change the settings of a running consumer.

        `push` may be a `Push`, None, or a dict with only the settings to change.

        Returns:
            The new settings. The secret of a push consumer is not returned. Passing the returned
            `Push` back would remove the secret, so use a dict to change its other settings.
        """
        changed = await self._ask(patch(*_place(stream, name), **_wired(changes)), Told[ConsumerInfo])
        return _consumer_spec(changed.info)

    async def delete_consumer(self, stream: str, name: str, *, force: bool = False) -> None:
        """Delete a consumer, its position and its dead letters. With `force` it is deleted even
        while workers use it."""
        await self._send(delete(*_place(stream, name), force=force or None))

    async def pause(self, stream: str, name: str, until: datetime | None = None) -> None:
        """Stop delivering messages to the consumer's workers until the given time, or until `resume`."""
        await self._send(post(*_place(stream, name), "pause", until=until and iso(until)))

    async def resume(self, stream: str, name: str) -> None:
        """End a pause."""
        await self._send(post(*_place(stream, name), "resume"))

    async def peek(self, stream: str, name: str, *, limit: int = 10) -> list[PeekedMessage]:
        """Read a consumer's messages without leasing them: in flight, parked, blocked and next,
        at most `limit` of each state."""
        found = await self._ask(get(*_place(stream, name), "messages", limit=limit, of_each=True), Listed[_Peeked])
        return [_peeked(one.message, one.info) for one in found.data]

    async def seek(self, stream: str, name: str, to: int | datetime | str) -> int:
        """Move a consumer's cursor. The next message delivered is the first at or above `to`.
        Returns the new position."""
        place = iso(to) if isinstance(to, datetime) else to
        return await self._count(post(*_place(stream, name), "seek", to=place), "position")

    async def replay(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Deliver messages again, before any new ones. Returns the number of messages."""
        chosen = selection(filter, where, start_seq, end_seq, start_time, end_time, dry_run)
        return await self._count(post(*_place(stream, name), "replay", wait=JUDGING, **chosen), "replayed")

    async def blocked_keys(self, stream: str, name: str, *, limit: int = 100) -> list[BlockedKey]:
        """List the keys that stay blocked until you redrive or purge their dead letters."""
        found = await self._ask(get(*_place(stream, name), "blocked_keys", limit=limit), Listed[BlockedKey])
        return found.data

    async def dead_letters(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        above: int = 0, limit: int = 100,
    ) -> list[DeadLetter]:  # fmt: skip
        """List the dead letters that match and have a seq above `above`, in seq order, at most `limit`."""
        request = get(
            *_place(stream, name), "dead_letters", wait=JUDGING,
            limit=limit, above=above or None, filter=one_or_several(filter), where=condition(where),
        )  # fmt: skip
        return [_letter(one) for one in (await self._ask(request, Listed[_Letter])).data]

    async def dead_letter(self, stream: str, name: str, seq: int) -> DeadLetter:
        """Return one dead letter. Raises `InvalidInput` if no dead letter has that seq."""
        try:
            return _letter(await self._ask(get(*_place(stream, name), "dead_letters", str(seq)), _Letter))
        except NotThere as error:
            raise InvalidInput(str(error)) from error

    async def redrive(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Deliver dead letters again. Returns the number of dead letters."""
        chosen = _letters(seqs, key, filter, where, dry_run)
        return await self._count(
            post(*_place(stream, name), "dead_letters", "redrive", wait=JUDGING, **chosen), "redriven"
        )

    async def purge(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Delete dead letters. Returns the number of dead letters."""
        chosen = _letters(seqs, key, filter, where, dry_run)
        return await self._count(post(*_place(stream, name), "dead_letters", "purge", wait=JUDGING, **chosen), "purged")


def _place(stream: str, name: str) -> tuple[str, ...]:
    return ("streams", stream, "consumers", name)


def _letters(
    seqs: Sequence[int] | None, key: str | None, filter_: Filter, where: Where, dry_run: bool
) -> dict[str, Any]:
    return {
        "seqs": None if seqs is None else list(seqs), "key": key, "filter": one_or_several(filter_),
        "where": condition(where), "dry_run": dry_run or None,
    }  # fmt: skip


def _wired(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a `ConsumerSpec`'s settings in the form of a request body. Conditions become text,
    and push settings get the units of the API."""
    found = dict(settings)
    if "filters" in found:
        found["filter"] = one_or_several(found.pop("filters"))
    if found.get("where") is not None:
        found["where"] = condition(found["where"])
    if isinstance(found.get("backoff"), Backoff):
        found["backoff"] = found["backoff"] if found["backoff"] != Backoff() else None
    if "push" in found:
        push = found["push"]
        found |= {"kind": "pull"} if push is None else {"kind": "push"}
        found["push"] = None if push is None else _wired_push(push)
    return found


def _wired_push(push: Push | Mapping[str, Any]) -> dict[str, Any]:
    """Return a `Push`, or a mapping with some of its settings, in the form of a request body."""
    found = dict(push) if isinstance(push, Mapping) else msgspec.structs.asdict(push)
    if "timeout" in found:
        found["timeout_ms"] = seconds(found.pop("timeout"), "timeout") * 1000
    if "batch" in found:
        found["batch_size"] = found.pop("batch")
    return found


def _given(spec: ConsumerSpec) -> dict[str, Any]:
    """Return the settings that differ from their defaults, in the form of a request body."""
    plain = ConsumerSpec(stream=spec.stream, name=spec.name)
    found = {
        name: value
        for name, value in msgspec.structs.asdict(spec).items()
        if name == "name" or (name != "stream" and value != getattr(plain, name, None))
    }
    if spec.push is not None:
        found["push"] = msgspec.to_builtins(spec.push)  # leaves defaults out
    return _wired(found)


def _told(spec: ConsumerSpec) -> dict[str, Any]:
    """Return the settings in the form of `ConsumerInfo.settings`, without the start position.
    Secrets are masked, so they are not compared."""
    where = None if spec.where is None else conditions.describe(spec.where)
    # Encoded as JSON and decoded, because the stored settings have been through JSON too.
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(spec, where=None)))
    if spec.push is not None and spec.push.secret:
        found["push"]["secret"] = "…"
    for begins in ("deliver_policy", "start_seq", "start_time"):
        del found[begins]
    return {**found, "where": where, "filters": list(spec.filters)}


def _consumer_spec(info: ConsumerInfo) -> ConsumerSpec:
    settings = {name: value for name, value in info.settings.items() if name in ConsumerSpec.__struct_fields__}
    where = settings.pop("where", None)
    if settings.get("push") is not None:
        settings["push"] = {name: value for name, value in settings["push"].items() if name != "secret"}
    spec = msgspec.convert({**settings, "stream": info.stream, "name": info.name}, ConsumerSpec)
    return spec if where is None else msgspec.structs.replace(spec, where=conditions.parse(where))


def _peeked(message: Message, info: _Standing) -> PeekedMessage:
    return PeekedMessage(
        seq=message.seq, key=message.key, data=decoded(message.data), headers=decoded(message.headers),
        created_at=message.inserted_at, state=info.state, attempts=info.deliver_count, owner=info.owner,
        lease_id=info.lease_id, held=info.held, until=info.not_visible_until,
    )  # fmt: skip


def _letter(letter: _Letter) -> DeadLetter:
    return DeadLetter(
        **{**msgspec.structs.asdict(letter), "data": decoded(letter.data), "headers": decoded(letter.headers)}
    )
