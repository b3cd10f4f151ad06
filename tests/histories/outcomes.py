"""What processes have sent: messages that they published, and outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tests.histories.keys import Open

if TYPE_CHECKING:
    from tests.histories.consumer import Consumer

NEVER = float("inf")


class Published:
    """A message that a process published, until it is leased.

    Attributes:
        answered: when it was known to be committed, and None if that is never known.
        seq: 0 if the answer doesn't say it. A message that is published again with its id has the seq of the first.
    """

    __slots__ = ("answered", "began", "call", "digest", "key", "seq")

    def __init__(self, key: str, digest: int, began: float, call: Any) -> None:
        self.key = key
        self.digest = digest
        self.began = began
        self.call = call
        self.answered: float | None = NEVER
        self.seq = 0

    def precedes(self, other: Published) -> bool:
        return self.answered is not None and (self.answered < other.began or self.call == other.call)


class Outcome(NamedTuple):
    """An outcome that was sent.

    Attributes:
        first: whether none of the message was sent in this lease before, which may have been carried out without an answer.
        final: whether the message is settled by it.
        closed: the open message, if this is its first final outcome.
    """

    lease: int
    seq: int
    first: bool
    final: bool
    closed: Open | None


class Settle(NamedTuple):
    """A settle that was sent."""

    consumer: Consumer
    sent: float
    history: str | None
    whole: frozenset[int]
    outcomes: list[Outcome]
    tx: int | None
