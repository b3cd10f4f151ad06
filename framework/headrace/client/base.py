"""What all calls of a remote administration go through."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from headrace.client.request import Answer, Request
from headrace.model import conditions

if TYPE_CHECKING:
    from headrace.app.admin.given import Filter, Where
    from headrace.client.transport import Transport

T = TypeVar("T")


class Listed(msgspec.Struct, Generic[T]):
    """A list of things, as the API tells it."""

    data: list[T]


class Told(msgspec.Struct, Generic[T]):
    """One thing beside its other forms: `info` has all that is known of it."""

    info: T


class Counted(msgspec.Struct):
    """How many it was."""

    data: dict[str, int]


class Base:
    """Where requests go."""

    _transport: Transport

    async def _ask(self, request: Request, shape: type[T]) -> T:
        return (await self._send(request)).read(shape)

    async def _send(self, request: Request) -> Answer:
        return await self._transport.send(request)

    async def _count(self, request: Request, name: str) -> int:
        answer = await self._send(request)
        return answer.read(Counted).data.get(name, 0)


def one_or_several(filter_: Filter) -> str | list[str] | None:
    """Key filters as the API takes them."""
    if filter_ is None or isinstance(filter_, str):
        return filter_
    return filter_[0] if len(filter_) == 1 else list(filter_)


def condition(where: Where) -> str | None:
    """A condition as text."""
    if where is None or isinstance(where, str):
        return where
    if isinstance(where, Mapping):
        return msgspec.json.encode(where).decode()
    return conditions.describe(where)


class Message(msgspec.Struct, kw_only=True):
    """A message as the API tells it. Data stays as it was written, until somebody reads it."""

    key: str
    seq: int
    data: msgspec.Raw
    headers: msgspec.Raw = msgspec.Raw(b"null")
    inserted_at: datetime
    attempt: int = 1


def decoded(raw: msgspec.Raw) -> Any:
    """JSON as Python; as text where Postgres takes for JSON what Python can't hold."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return bytes(raw).decode()
