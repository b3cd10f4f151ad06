"""The batch as a handler sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.runtime.message import Message

if TYPE_CHECKING:
    from headrace.runtime.transaction import Transaction


class Batch(msgspec.Struct, eq=False):
    """Messages that are handled together, those of one key in their order."""

    stream: str
    consumer: str
    messages: tuple[Message, ...]
    transaction: Transaction | None = None
    """The one that its handler runs in, if that is transactional."""

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __getitem__(self, place: int) -> Message:
        return self.messages[place]

    @property
    def payloads(self) -> list[Any]:
        """Their payloads, decoded."""
        return [message.data for message in self.messages]
