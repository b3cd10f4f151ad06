"""Consumers, of a server."""

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
    from headrace.app.admin.given import Filter, Where


class _Standing(msgspec.Struct, kw_only=True):
    """Where a consumer stands with a message that was peeked at."""

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
    """A dead letter as the API tells it."""

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
    """The calls about consumers; see `headrace.app.admin`."""

    async def create_consumer(self, spec: ConsumerSpec) -> bool:
        """Create a consumer; one that exists with these very settings is left as it is. Returns whether it is new."""
        try:
            await self._send(post("streams", spec.stream, "consumers", **_given(spec)))
        except AlreadyThere:
            there = await self.consumer(spec.stream, spec.name)
            refuse_changes(there.settings, _told(spec), f"The consumer {spec.name!r} of the stream {spec.stream!r}")
            return False
        return True

    async def consumers(self, stream: str | None = None) -> list[ConsumerInfo]:
        """The consumers of a stream, or of all streams, by name."""
        request = get("consumers") if stream is None else get("streams", stream, "consumers")
        return [one.info for one in (await self._ask(request, Listed[Told[ConsumerInfo]])).data]

    async def consumer(self, stream: str, name: str) -> ConsumerInfo:
        """One consumer."""
        return (await self._ask(get(*_place(stream, name)), Told[ConsumerInfo])).info

    async def edit_consumer(self, stream: str, name: str, /, **changes: Any) -> ConsumerSpec:
        """Change a consumer's settings, live. `push` as a `Push`, as None, or as a dict of those of its settings that change.

        Returns:
            The settings as they are now. A push consumer's secret isn't told, and the `Push` without it would remove it: change
            others by a dict.
        """
        changed = await self._ask(patch(*_place(stream, name), **_wired(changes)), Told[ConsumerInfo])
        return _consumer_spec(changed.info)

    async def delete_consumer(self, stream: str, name: str, *, force: bool = False) -> None:
        """Delete a consumer, its place and its dead letters; by `force` also if workers are at it."""
        await self._send(delete(*_place(stream, name), force=force or None))

    async def pause(self, stream: str, name: str, until: datetime | None = None) -> None:
        """Give the consumer's workers nothing more until then, or until `resume`."""
        await self._send(post(*_place(stream, name), "pause", until=until and iso(until)))

    async def resume(self, stream: str, name: str) -> None:
        """End a pause."""
        await self._send(post(*_place(stream, name), "resume"))

    async def peek(self, stream: str, name: str, *, limit: int = 10) -> list[PeekedMessage]:
        """What a consumer is at, without touching it: messages in flight, parked, blocked and next, at most `limit` of each."""
        found = await self._ask(get(*_place(stream, name), "messages", limit=limit, of_each=True), Listed[_Peeked])
        return [_peeked(one.message, one.info) for one in found.data]

    async def seek(self, stream: str, name: str, to: int | datetime | str) -> int:
        """Move a consumer: the next message delivered is the first at or above `to`. Returns the new position."""
        place = iso(to) if isinstance(to, datetime) else to
        return await self._count(post(*_place(stream, name), "seek", to=place), "position")

    async def replay(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        start_seq: int | None = None, end_seq: int | None = None,
        start_time: datetime | None = None, end_time: datetime | None = None, dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Deliver messages once more, before anything new. Returns how many."""
        chosen = selection(filter, where, start_seq, end_seq, start_time, end_time, dry_run)
        return await self._count(post(*_place(stream, name), "replay", wait=JUDGING, **chosen), "replayed")

    async def blocked_keys(self, stream: str, name: str, *, limit: int = 100) -> list[BlockedKey]:
        """The keys that wait for a person: redrive or purge their dead letters."""
        found = await self._ask(get(*_place(stream, name), "blocked_keys", limit=limit), Listed[BlockedKey])
        return found.data

    async def dead_letters(
        self, stream: str, name: str, *, filter: Filter = None, where: Where = None,  # noqa: A002
        above: int = 0, limit: int = 100,
    ) -> list[DeadLetter]:  # fmt: skip
        """Dead letters that match, with a seq above `above`, in the order of seq, at most `limit`."""
        request = get(
            *_place(stream, name), "dead_letters", wait=JUDGING,
            limit=limit, above=above or None, filter=one_or_several(filter), where=condition(where),
        )  # fmt: skip
        return [_letter(one) for one in (await self._ask(request, Listed[_Letter])).data]

    async def dead_letter(self, stream: str, name: str, seq: int) -> DeadLetter:
        """One dead letter. Raises `InvalidInput` when there is none of that seq."""
        try:
            return _letter(await self._ask(get(*_place(stream, name), "dead_letters", str(seq)), _Letter))
        except NotThere as error:
            raise InvalidInput(str(error)) from error

    async def redrive(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Deliver dead letters again. Returns how many."""
        chosen = _letters(seqs, key, filter, where, dry_run)
        return await self._count(
            post(*_place(stream, name), "dead_letters", "redrive", wait=JUDGING, **chosen), "redriven"
        )

    async def purge(
        self, stream: str, name: str, *, seqs: Sequence[int] | None = None, key: str | None = None,
        filter: Filter = None, where: Where = None, dry_run: bool = False,  # noqa: A002
    ) -> int:  # fmt: skip
        """Forget dead letters. Returns how many."""
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
    """Settings of a `ConsumerSpec` as a body says them: conditions as text, and a push consumer's URL in the wire's own units."""
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
    """All of a `Push`, or those of its settings that are given, as a body says them."""
    found = dict(push) if isinstance(push, Mapping) else msgspec.structs.asdict(push)
    if "timeout" in found:
        found["timeout_ms"] = seconds(found.pop("timeout"), "timeout") * 1000
    if "batch" in found:
        found["batch_size"] = found.pop("batch")
    return found


def _given(spec: ConsumerSpec) -> dict[str, Any]:
    """The settings that differ from their defaults, as a body says them."""
    plain = ConsumerSpec(stream=spec.stream, name=spec.name)
    found = {
        name: value
        for name, value in msgspec.structs.asdict(spec).items()
        if name == "name" or (name != "stream" and value != getattr(plain, name, None))
    }
    if spec.push is not None:
        found["push"] = msgspec.to_builtins(spec.push)  # which leaves defaults out
    return _wired(found)


def _told(spec: ConsumerSpec) -> dict[str, Any]:
    """The settings as `ConsumerInfo` tells them, but for where it began. A secret can't be compared."""
    where = None if spec.where is None else conditions.describe(spec.where)
    # By way of JSON, since that is how the others were kept.
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
