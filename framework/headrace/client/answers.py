"""Answers of the HTTP API, and the records that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import asdict

from headrace.client.request import Response
from headrace.model.records import DeadLetter, Erasure, PeekedMessage, Received, Standing, StoredMessage
from headrace.model.watching.journeys import Journey, JourneyStop, Trace
from headrace.model.watching.operations import SearchStep

T = TypeVar("T")


class Answer(msgspec.Struct, kw_only=True):
    """Base of the answers that are not records themselves."""

    def record(self) -> Any:
        """Return the record that `Admin` returns."""
        raise NotImplementedError


class Data(Answer, Generic[T], kw_only=True):
    """An answer with one field, a list or an object."""

    data: T

    def record(self) -> T:
        return self.data


class Info(Answer, Generic[T], kw_only=True):
    """An object of the API. `info` is the complete record."""

    info: T

    def record(self) -> T:
        return self.info


class Message(Answer, kw_only=True, rename={"created_at": "inserted_at"}):
    """A message. `data` and `headers` stay undecoded until they are read."""

    key: str
    seq: int
    data: msgspec.Raw
    headers: msgspec.Raw = msgspec.Raw(b"null")
    created_at: datetime
    expires_at: datetime | None = None
    attempt: int = 1

    def record(self) -> StoredMessage:
        return StoredMessage(**self.content())

    def content(self) -> dict[str, Any]:
        """Return the fields that the records of messages have in common."""
        same = {"seq": self.seq, "key": self.key, "created_at": self.created_at, "expires_at": self.expires_at}
        return {**same, "data": decoded(self.data), "headers": decoded(self.headers)}


_RENAMED = {"attempts": "deliver_count", "until": "not_visible_until"}


class PeekState(msgspec.Struct, kw_only=True, rename=_RENAMED):
    """The state of a peeked message in a consumer."""

    state: Literal["in_flight", "parked", "blocked", "next"]
    attempts: int = 0
    until: datetime | None = None
    owner: str | None = None
    lease_id: int | None = None
    held: int | None = None
    failed_at: datetime | None = None
    error: str | None = None
    error_type: str | None = None
    failed_by: str | None = None


class Peeked(Answer, kw_only=True):
    """A peeked message."""

    message: Message
    info: PeekState

    def record(self) -> PeekedMessage:
        return PeekedMessage(**self.message.content(), **asdict(self.info))


class Delivery(Answer, kw_only=True):
    """A received message."""

    ack_id: str
    message: Message

    def record(self) -> Received:
        return Received(ack_id=self.ack_id, **self.message.content(), attempt=self.message.attempt)


class KeyStanding(Answer, kw_only=True, rename=_RENAMED):
    """The state of a key's latest message in a consumer. `seq` is that of the message."""

    consumer_id: str
    consumer: str
    seq: int
    state: Any
    attempts: int | None = None
    until: datetime | None = None
    owner: str | None = None
    failed_at: datetime | None = None
    error: str | None = None
    error_type: str | None = None

    def record(self) -> Standing:
        return Standing(**{name: value for name, value in asdict(self).items() if name != "seq"})


class TracedMessage(Message, kw_only=True):
    """A message with its trace."""

    trace: Trace | None = None


class MessageJourney(Answer, kw_only=True):
    """The journey of a message."""

    seq: int
    message: TracedMessage | None
    gone: Any = None
    erased: Erasure | None = None
    consumers: list[JourneyStop]
    next: str | None = None

    def record(self) -> Journey:
        found = self.message
        message, trace = (None, None) if found is None else (found.record(), found.trace)
        return Journey(**asdict(self) | {"message": message, "trace": trace})


class SearchAnswer(Answer, kw_only=True):
    """One step of a search."""

    data: list[Message]
    examined: int
    position: int
    more: bool
    remaining: int

    def record(self) -> SearchStep:
        rest = asdict(self)
        return SearchStep(messages=[message.record() for message in rest.pop("data")], **rest)


class DeadLetterAnswer(DeadLetter, frozen=True, kw_only=True):
    """A dead letter. `data` and `headers` stay undecoded until they are read."""

    data: msgspec.Raw
    headers: msgspec.Raw  # type: ignore[assignment]

    def record(self) -> DeadLetter:
        content = {"data": decoded(self.data), "headers": decoded(self.headers)}
        return DeadLetter(**{**asdict(self), **content})


def record(kind: Any, convert: Callable[[Any], Any] | None = None) -> Callable[[Response], Any]:
    """Make a decoder of one object. It returns the object's record, converted if `convert` is given."""

    def decode(response: Response) -> Any:
        found = _record(response.decode(kind))
        return found if convert is None else convert(found)

    return decode


def records(kind: Any) -> Callable[[Response], list[Any]]:
    """Make a decoder of a list of objects. It returns their records."""
    listed: Any = Data[list[kind]]
    return lambda response: [_record(found) for found in response.decode(listed).data]


class ListPage(msgspec.Struct, Generic[T], kw_only=True):
    """A page of a list. `next` is the place from which the list continues, None at its end. `unavailable` has the names of
    databases that did not answer."""

    data: list[T]
    next: int | str | None = None
    unavailable: list[str] = []


def pages(kind: Any) -> Callable[[Response], ListPage[Any]]:
    """Make a decoder of a page of a list of objects. The page has their records."""
    listed: Any = ListPage[kind]

    def decode(response: Response) -> ListPage[Any]:
        found: ListPage[Any] = response.decode(listed)
        return msgspec.structs.replace(found, data=[_record(item) for item in found.data])

    return decode


def count(name: str) -> Callable[[Response], int]:
    """Make a decoder of the count of this name."""
    return lambda response: response.decode(Data[dict[str, int]]).data.get(name, 0)


def _record(found: Any) -> Any:
    return found.record() if isinstance(found, (Answer, DeadLetterAnswer)) else found


def decoded(raw: msgspec.Raw) -> Any:
    """Decode JSON. Return it as text if Python can't decode it, since Postgres accepts JSON that
    Python doesn't."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return bytes(raw).decode()
