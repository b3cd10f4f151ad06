"""Base class and shared types of the remote administration."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from headrace.client.request import Answer, Request
from headrace.model import conditions

if TYPE_CHECKING:
    from headrace.admin.validation import Filter, Where
    from headrace.client.transport import Transport

T = TypeVar("T")


class Listed(msgspec.Struct, Generic[T]):
    """A list in the API's answer."""

    data: list[T]


class Told(msgspec.Struct, Generic[T]):
    """One object in the API's answer. `info` has all of its fields, the other members are shortened forms."""

    info: T


class Counted(msgspec.Struct):
    """A count in the API's answer."""

    data: dict[str, int]


class Base:
    """Base of the classes that group the calls. It sends requests and decodes answers."""

    _transport: Transport

    async def _ask(self, request: Request, shape: type[T]) -> T:
        return (await self._send(request)).read(shape)

    async def _send(self, request: Request) -> Answer:
        return await self._transport.send(request)

    async def _count(self, request: Request, name: str) -> int:
        answer = await self._send(request)
        return answer.read(Counted).data.get(name, 0)


def one_or_several(filter_: Filter) -> str | list[str] | None:
    """Return key filters in the form that the API takes."""
    if filter_ is None or isinstance(filter_, str):
        return filter_
    return filter_[0] if len(filter_) == 1 else list(filter_)


def condition(where: Where) -> str | None:
    """Return a condition as text."""
    if where is None or isinstance(where, str):
        return where
    if isinstance(where, Mapping):
        return msgspec.json.encode(where).decode()
    return conditions.describe(where)


class Message(msgspec.Struct, kw_only=True):
    """A message in the API's answer. `data` and `headers` stay undecoded until they are read."""

    key: str
    seq: int
    data: msgspec.Raw
    headers: msgspec.Raw = msgspec.Raw(b"null")
    inserted_at: datetime
    attempt: int = 1


def decoded(raw: msgspec.Raw) -> Any:
    """Decode JSON. Return it as text if Python can't decode it, since Postgres accepts JSON that
    Python doesn't."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return bytes(raw).decode()
