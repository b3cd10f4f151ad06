"""What became of a delivery, and the exceptions by which a handler says so.

A handler that returns acks; one that raises nacks, and the message comes again after its backoff. Two exceptions say more:
`Retry` chooses the delay, `Reject` sends the message to the dead letters at once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import HeadraceError

Kind = Literal["ack", "retry", "release", "reject", "invalid"]
"""ack: done. retry: failed, again later. release: never started, given back. reject, invalid: to the dead letters."""


class Retry(HeadraceError):
    """Raise in a handler to have the message again `after` a while (seconds, or text such as "30s"); the attempt counts.

    Without `after` the consumer's backoff decides.
    """

    def __init__(self, reason: str = "the handler asked for a retry", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = None if after is None else seconds(after, "after")


class Reject(HeadraceError):
    """Raise in a handler to send the message to the dead letters at once: no attempt could succeed."""

    def __init__(self, reason: str = "the handler rejected the message") -> None:
        super().__init__(reason)


class Unfit(Reject):
    """A `Reject` for a payload that isn't what the handler takes: for adapters that decode payloads themselves.

    Among the dead letters it stands as one that the framework could not decode.
    """


class Release(HeadraceError):
    """Raise in an adapter to give the delivery back as it came: what it needed wasn't there, and no message is at fault.

    No attempt counts, a batch is not bisected, and the messages may come again at once: wait before, for what was missing.
    """


class Failure(msgspec.Struct, frozen=True, gc=False):
    """An outcome other than an ack. `delay`: seconds until a retry, None for at once."""

    kind: Kind
    delay: float | None = None
    error: str | None = None
    traceback: str | None = None


RELEASE = Failure("release")


class Settlement(msgspec.Struct, gc=False):
    """Outcomes to settle in one call, for one consumer.

    `whole`: leases of which everything that is left is acked. `leases`, `seqs`, `failures` run in parallel, for single
    messages; a failure of None is an ack.
    """

    whole: list[int] = []
    leases: list[int] = []
    seqs: list[int] = []
    failures: list[Failure | None] = []

    def __bool__(self) -> bool:
        return bool(self.whole or self.leases)
