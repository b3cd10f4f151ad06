"""The batch as a handler sees it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.durations import Duration
from headrace.model.errors import InvalidInput
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.message import Message

if TYPE_CHECKING:
    from headrace.runtime.transaction import Transaction

Said = Retry | Reject | None
"""What a handler says of one message of its batch: None for an ack."""


class Batch(msgspec.Struct, eq=False):
    """Messages that are handled together, those of one key in their order.

    When the handler returns, all are acked but those of which it said otherwise: by `retry` and `reject`, or by returning a list
    with None, a `Retry` or a `Reject` for each message. What follows one of these in its key is given back, whatever was said
    of it, or it would overtake. When the handler raises, that counts for all of them, and what was said before does not.

    Attributes:
        stream, consumer: their names.
        messages: the messages.
        failures: what was said of those that are not to be acked, by seq.
    """

    stream: str
    consumer: str
    messages: tuple[Message, ...]
    transaction: Transaction | None = None
    """The one that its handler runs in, if that is transactional."""
    failures: dict[int, Retry | Reject] = {}

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

    def retry(
        self, message: Message, *, after: Duration | None = None, reason: str = "the handler asked for a retry"
    ) -> None:
        """Have this one again `after` a while (seconds, or text such as "30s"), or when None after the consumer's backoff.

        Its attempt counts. It goes back when the handler returns.
        """
        self.failures[message.seq] = Retry(reason, after=after)

    def reject(self, message: Message, reason: str = "the handler rejected the message") -> None:
        """Send this one to the dead letters when the handler returns."""
        self.failures[message.seq] = Reject(reason)

    def say(self, outcomes: list[Said]) -> None:
        """What became of each message, in their order. Raises `InvalidInput` for a list that doesn't fit."""
        if len(outcomes) != len(self.messages):
            raise InvalidInput(
                f"The handler of a batch of {len(self.messages)} messages returned a list of {len(outcomes)}: return None to ack"
                " them all, or a list with None, Retry(…) or Reject(…) for each message, in their order."
            )
        for message, said in zip(self.messages, outcomes, strict=True):
            if isinstance(said, (Retry, Reject)):
                self.failures[message.seq] = said
            elif said is not None:
                raise InvalidInput(
                    f"The handler of a batch returned a list with a {type(said).__name__}: give None, Retry(…) or Reject(…) for"
                    " each message, or return None to ack them all."
                )

    @property
    def done(self) -> list[Message]:
        """Those that are to be acked when the handler returns now: neither failed, nor behind one that failed, nor settled."""
        if not self.failures and not any(message.settled for message in self.messages):
            return list(self.messages)
        failed: set[Hashable] = set()
        left = []
        for message in self.messages:
            if message.seq in self.failures:
                failed.add(message.lane)
            elif not message.settled and message.lane not in failed:
                left.append(message)
        return left
