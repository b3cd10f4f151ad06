"""Why a consumer is behind: the cause, and a sentence with the figures that show it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, Struct

Cause = Literal[
    "",
    "paused",
    "breaker",
    "blocked",
    "filters",
    "unattended",
    "event_loop",
    "failing",
    "rate_limit",
    "priority",
    "key",
    "busy",
    "catching_up",
    "other",
    "open_transaction",
]
"""Why messages of a consumer wait. Empty if none does.

`paused`: a user has paused it. `breaker`: its circuit breaker is open. `blocked`: dead letters block keys. `filters`: none of the last messages matches its filters.
`unattended`: no process works on it. `event_loop`: a handler blocks the event loop of a process. `failing`: most of what waits has failed and
waits for a retry, or behind such a message. `rate_limit`, `priority`: the setting holds it back. `key`: most of what waits
has one key. `busy`: nearly all actors work. `catching_up`: it finishes more than is published. `open_transaction`: a
publisher has not committed.
"""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Why a consumer is behind."""

    cause: Annotated[Cause, Meta(description="Empty if nothing waits.")]
    text: Annotated[str, Meta(description="The cause and the figures, as sentences. Empty if nothing waits.")]


class Waiting(Struct, frozen=True, kw_only=True):
    """What waits for a consumer, judged by a sample of the first messages.

    Attributes:
        at: when it was taken, by the database's clock.
        examined: how many messages were examined.
        key: the key that most of them belong to. None if order doesn't matter, or if none waits.
        of_key: how many of them do.
        retries: how many messages wait for a retry, of the first thousand that are parked.
        error, error_type, failed_at, failed_by: of the one that failed last.
        holes: ranges of seqs that late commits may still fill.
        publish_rate, finish_rate: per second, from the last sample of the charts. None if none was taken lately.
    """

    at: datetime | None = None
    examined: int = 0
    key: str | None = None
    of_key: int = 0
    retries: int = 0
    error: str | None = None
    error_type: str | None = None
    failed_at: datetime | None = None
    failed_by: str | None = None
    holes: int = 0
    publish_rate: float | None = None
    finish_rate: float | None = None
