"""Scheduled messages, and their places in a list."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from msgspec import Struct

from headrace.model.errors import InvalidInput
from headrace.model.pages import timed_place, timed_text


class ScheduledPlace(NamedTuple):
    """The place of a scheduled message in the list of a stream: when it is due, and its id."""

    deliver_at: datetime
    id: int

    def __str__(self) -> str:
        return timed_text(self)

    @classmethod
    def parse(cls, text: str) -> ScheduledPlace:
        """Parse the text of a place. Raises `InvalidInput`."""
        try:
            return cls(*timed_place(text, 1))
        except ValueError:
            raise InvalidInput(
                f"{text[:80]!r} is not a place of the list. Send `next` or `prev` of another page."
            ) from None


class ScheduledMessage(Struct, frozen=True, kw_only=True):
    """A message that is published later. It has no seq before then."""

    id: int
    """By which it can be cancelled. Unique in a database."""
    deliver_at: datetime
    """When it is published."""
    key: str
    data: Any
    headers: dict[str, Any] | None
    unique_key: str | None

    @property
    def place(self) -> ScheduledPlace:
        """Its place in the list."""
        return ScheduledPlace(self.deliver_at, self.id)
