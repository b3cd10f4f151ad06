"""The bench: an actor's place at work. Whoever runs below the actor, a log record for one, can ask what is on it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from headrace.runtime.batch import Batch
    from headrace.runtime.message import Message

NEVER = float("inf")


class Bench:
    """An actor's place at work.

    Attributes:
        delivery: the message or the batch that is on it; None in between.
        until: when its handler must be done, on the actor's clock.
        scope: what to cancel to stop the handler. One that was cancelled is spent, and replaced.
        overdue: whether it was cancelled because the time was up.
    """

    __slots__ = ("delivery", "overdue", "scope", "until")

    def __init__(self) -> None:
        self.delivery: Message | Batch | None = None
        self.until = NEVER
        self.overdue = False
        self.scope = anyio.CancelScope()

    def clear(self) -> None:
        """Make it ready for the next lane."""
        self.delivery = None
        self.until = NEVER
        self.overdue = False
        self.scope = anyio.CancelScope()


at_work: ContextVar[Bench | None] = ContextVar("headrace_bench", default=None)
"""The bench of the actor that this code runs below. Set once per actor, since setting it for each message would cost too much."""
