"""What a consumer is, in the settings that the database keeps for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_filters

OnExhausted = Literal["dead_letter", "block", "drop"]


class Backoff(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long a message waits before its next attempt.

    Either `delays`, in seconds, the last one repeated; or, when that is empty, exponential: `base * factor ** (attempt - 1)`,
    at most `limit` seconds, of which a random share of up to `jitter` is taken away, so that messages that failed together
    don't come back together.
    """

    delays: tuple[float, ...] = ()
    base: float = 1.0
    factor: float = 2.0
    limit: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        for value in (self.base, self.factor, self.limit, *self.delays):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(
                    f"{self!r} can't be: its durations and its factor are finite and not negative."
                )
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(
                f"jitter={self.jitter} of a Backoff must be from 0 to 1: the share that chance may take away."
            )

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after `attempt` (1 is the first) has failed; `chance` is a random number from 0 to 1."""
        if self.delays:
            return self.delays[min(attempt, len(self.delays)) - 1]
        try:
            full = min(self.base * self.factor ** (attempt - 1), self.limit)
        except OverflowError:
            full = self.limit
        return full * (1 - self.jitter * chance)

    @classmethod
    def of(cls, value: Backoff | Duration | Sequence[Duration] | None) -> Backoff:
        """A backoff from what a user writes: itself, one delay, a list of delays, or None for the default."""
        if value is None:
            return cls()
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value:
                raise ConfigurationError("backoff=[] is empty: list at least one delay, such as ['1s', '10s', '1m'].")
            return cls(delays=tuple(seconds(delay, "backoff") for delay in value))
        return cls(delays=(seconds(value, "backoff"),))


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's settings.

    Args:
        stream: the stream it reads.
        name: unique on its stream.
        filters: a message matches if its key matches any of them.
        ordered: keep strict order per key.
        ack_wait: the visibility timeout, in seconds: how long a lease holds unless it is extended.
        max_ack_pending: how many messages may be leased and unsettled at one time, over all workers.
        max_deliver: attempts before a message is exhausted; -1 for no limit.
        backoff: the wait before the next attempt.
        on_exhausted: what becomes of an exhausted message: `dead_letter`; `block`, its key waits for a person; or `drop`.
    """

    stream: str
    name: str
    filters: tuple[str, ...] = (">",)
    ordered: bool = True
    ack_wait: float = 30.0
    max_ack_pending: int = 1000
    max_deliver: int = 10
    backoff: Backoff = Backoff()
    on_exhausted: OnExhausted = "dead_letter"

    def __post_init__(self) -> None:
        check_filters(self.filters)
        if not self.name:
            raise ConfigurationError("A consumer needs a name.")
        if not 0.1 <= self.ack_wait <= 86400:
            raise ConfigurationError(f"ack_wait={self.ack_wait} of consumer {self.name!r} must be from 0.1 s to a day.")
        if not 1 <= self.max_ack_pending <= 100_000:
            raise ConfigurationError(
                f"max_ack_pending={self.max_ack_pending} of consumer {self.name!r} must be from 1 to 100,000."
            )
        if self.max_deliver != -1 and not 1 <= self.max_deliver <= 1_000_000:
            raise ConfigurationError(
                f"max_deliver={self.max_deliver} of consumer {self.name!r} must be from 1 to 1,000,000, or -1 for no limit."
            )
        if self.on_exhausted not in get_args(OnExhausted):
            raise ConfigurationError(
                f"on_exhausted={self.on_exhausted!r} of consumer {self.name!r} must be 'dead_letter', 'block' or 'drop'."
            )
