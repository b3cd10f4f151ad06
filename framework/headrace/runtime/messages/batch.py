"""The batch that a handler receives."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.durations import Duration
from headrace.model.errors import InvalidInput
from headrace.model.outcomes import Reject, Retry, Snooze
from headrace.runtime.messages.message import Message

if TYPE_CHECKING:
    from headrace.runtime.messages.transaction import Transaction

BatchOutcome = Retry | Reject | None
"""The outcome that a handler returns for one message of its batch. None is an ack."""


class Batch(msgspec.Struct, eq=False):
    """Messages that are handled together. Those of one key are in order.

    When the handler returns, all messages are acked except those for which it called `retry`, `snooze`
    or `reject`, or returned a list with None, a `Retry`, a `Snooze` or a `Reject` for each message. Later messages of
    the key of a failed one are released, whatever their own outcome, because they would
    overtake it. When the handler raises, all messages fail, and outcomes that it gave before have
    no effect.

    Attributes:
        stream, consumer: the names of their stream and consumer.
        messages: the messages.
        failures: the outcomes of the messages that are not to be acked, by seq.
    """

    stream: str
    consumer: str
    messages: tuple[Message, ...]
    transaction: Transaction | None = None
    """The transaction of the handler, if the handler is transactional."""
    failures: dict[int, Retry | Reject] = {}

    def __repr__(self) -> str:
        """Return what names the batch, without the payloads of its messages."""
        return f"<Batch {self.stream}/{self.consumer} messages={len(self)}>"

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __getitem__(self, place: int) -> Message:
        return self.messages[place]

    @property
    def payloads(self) -> list[Any]:
        """The decoded payloads."""
        return [message.data for message in self.messages]

    def retry(
        self, message: Message, *, after: Duration | None = None, reason: str = "the handler asked for a retry"
    ) -> None:
        """Request redelivery of a message when the handler returns. The attempt counts.

        Args:
            message: a message of this batch.
            after: the delay, in seconds or as text such as "30s". None for the consumer's backoff.
            reason: the error of this attempt, as logs and a later dead letter show it.
        """
        self.failures[message.seq] = Retry(reason, after=after)

    def snooze(self, message: Message, delay: Duration) -> None:
        """Request redelivery of a message after `delay` when the handler returns, without counting the attempt."""
        self.failures[message.seq] = Snooze(delay)

    def reject(self, message: Message, reason: str = "the handler rejected the message") -> None:
        """Make a message a dead letter when the handler returns.

        Args:
            message: a message of this batch.
            reason: the error that the dead letter shows.
        """
        self.failures[message.seq] = Reject(reason)

    def set_outcomes(self, outcomes: list[BatchOutcome]) -> None:
        """Set the outcome of each message.

        Args:
            outcomes: None to ack, `Retry` or `Reject`, in the order of the messages.

        Raises:
            InvalidInput: the list has another length, or other elements.
        """
        if len(outcomes) != len(self.messages):
            raise InvalidInput(
                f"The handler of a batch of {len(self.messages)} messages returned a list of {len(outcomes)}: return None to ack"
                " them all, or a list with None, Retry(…) or Reject(…) for each message, in their order."
            )
        for message, outcome in zip(self.messages, outcomes, strict=True):
            if isinstance(outcome, (Retry, Reject)):
                self.failures[message.seq] = outcome
            elif outcome is not None:
                raise InvalidInput(
                    f"The handler of a batch returned a list with a {type(outcome).__name__}: give None, Retry(…) or Reject(…) for"
                    " each message, or return None to ack them all."
                )

    @property
    def done(self) -> list[Message]:
        """The messages to ack if the handler returns now: neither failed, nor behind a failed one, nor
        settled."""
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
