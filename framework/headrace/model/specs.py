"""The settings of streams and consumers, as the database keeps them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, get_args

import msgspec

from headrace.model.conditions import Condition
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_filters
from headrace.model.push import Push

OnExhausted = Literal["dead_letter", "block", "drop"]
DeliverPolicy = Literal["all", "new", "by_start_seq", "by_start_time", "last_per_key"]
Retention = Literal["limits", "interest"]

SMALLEST_STORAGE = 1_000_000
FASTEST_RATE = 1_000_000


class Backoff(msgspec.Struct, frozen=True, omit_defaults=True):
    """The delay before a message's next attempt.

    `delays` lists the delays in seconds, and the last one repeats. If it is empty, the backoff is
    exponential: `base * factor ** (attempt - 1)`, at most `limit` seconds. A random share of up to `jitter`
    is subtracted, so that messages that failed together are not retried together.
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
        """Seconds to wait after `attempt` has failed. The first attempt is 1. `chance` is a random number from
        0 to 1.
        """
        if self.delays:
            return self.delays[min(attempt, len(self.delays)) - 1]
        try:
            full = min(self.base * self.factor ** (attempt - 1), self.limit)
        except OverflowError:
            full = self.limit
        return full * (1 - self.jitter * chance)

    @classmethod
    def of(cls, value: Backoff | Duration | Sequence[Duration] | None) -> Backoff:
        """Make a backoff from a `Backoff`, one delay, a list of delays, or None for the default."""
        if value is None:
            return cls()
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value:
                raise ConfigurationError("backoff=[] is empty: list at least one delay, such as ['1s', '10s', '1m'].")
            return cls(delays=tuple(seconds(delay, "backoff") for delay in value))
        return cls(delays=(seconds(value, "backoff"),))


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a stream. Without any limit it keeps all messages.

    Args:
        name: 1 to 48 lower-case letters, digits, `-` and `_`.
        retention: `limits` applies the limits below. `interest` keeps a message until every consumer is
            done with it.
        retain_up_to: seconds after which a message is removed.
        retain_at_least: seconds for which a message is kept whatever the stream's size. Publishing is
            refused if that leaves no room.
        max_storage: bytes on disk above which the oldest messages are removed.
        one_message_per_key: a new message replaces the previous one of the same key (compaction).
        dedupe: don't publish a payload that is the same as the key's previous one, compared by SHA-256.
        tombstones: a `null` payload deletes its key, once it has been delivered to every consumer.
        dedupe_window: seconds for which message ids are remembered, so that a repeated publish has no effect.
    """

    name: str
    retention: Retention = "limits"
    retain_up_to: float | None = None
    retain_at_least: float | None = None
    max_storage: int | None = None
    one_message_per_key: bool = False
    dedupe: bool = False
    tombstones: bool = False
    dedupe_window: float = 120.0

    def __post_init__(self) -> None:
        if self.retention not in get_args(Retention):
            raise ConfigurationError(f"retention={self.retention!r} of {self._who} must be 'limits' or 'interest'.")
        for setting in ("retain_up_to", "retain_at_least"):
            value = getattr(self, setting)
            if value is not None and not 1 <= value <= 3_153_600_000:
                raise ConfigurationError(f"{setting}={value} of {self._who} must be from 1 second to 100 years.")
        if self.max_storage is not None and not SMALLEST_STORAGE <= self.max_storage <= 2**60:
            raise ConfigurationError(
                f"max_storage={self.max_storage} of {self._who} must be at least {SMALLEST_STORAGE:,} bytes."
            )
        if not 0 <= self.dedupe_window <= 30 * 86400:
            raise ConfigurationError(f"dedupe_window={self.dedupe_window} of {self._who} must be from 0 to 30 days.")
        self._check_contradictions()

    def _check_contradictions(self) -> None:
        if (
            self.retain_up_to is not None
            and self.retain_at_least is not None
            and self.retain_at_least > self.retain_up_to
        ):
            raise ConfigurationError(
                f"{self._who} can't keep messages for at least {self.retain_at_least:g} s and at most {self.retain_up_to:g} s:"
                " retain_at_least must not be longer than retain_up_to."
            )
        if self.retention == "interest" and self.retain_up_to is not None:
            raise ConfigurationError(
                f"{self._who} can't keep messages until every consumer is done (retention='interest') and remove them after a"
                " time (retain_up_to): choose one. retain_at_least keeps what is done for a while."
            )
        for setting in ("dedupe", "tombstones"):
            if getattr(self, setting) and not self.one_message_per_key:
                raise ConfigurationError(
                    f"{setting} of {self._who} needs one_message_per_key: without it there is no earlier message to compare with or"
                    " delete."
                )

    @property
    def _who(self) -> str:
        return f"the stream {self.name!r}"


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's settings.

    Args:
        stream: the stream that it reads.
        name: the consumer's name, unique on its stream.
        filters: a message matches if its key matches any of these patterns.
        where: a condition that a message must also meet. None for no condition.
        ordered: keep strict order per key.
        ack_wait: the visibility timeout in seconds. A lease expires after it unless it is extended.
        max_ack_pending: the maximum number of messages that are leased and not settled, over all workers.
        max_deliver: the number of attempts before a message is exhausted. -1 for no limit.
        backoff: the delay before the next attempt.
        on_exhausted: what happens to an exhausted message. `dead_letter` makes it a dead letter, `block`
            makes it one and blocks its key until you redrive or purge it, and `drop` discards it.
        max_waiting: the maximum number of HTTP requests that wait for messages at each server process.
        deliver_policy: where a new consumer starts. `all` starts at the first message, `new` after the last
            one, `by_start_seq` at `start_seq`, and `by_start_time` at `start_time`. `last_per_key` delivers
            the last message of each key, and then new ones.
        rate_limit: messages per second, over all workers. None for no limit.
        rate_burst: the maximum number of messages at once after a pause. By default what the rate allows in
            one second, and at least 1.
        push: where servers send its messages. None for a consumer with workers that lease them.
    """

    stream: str
    name: str
    filters: tuple[str, ...] = (">",)
    where: Condition | None = None
    ordered: bool = True
    ack_wait: float = 30.0
    max_ack_pending: int = 1000
    max_deliver: int = 10
    backoff: Backoff = Backoff()
    on_exhausted: OnExhausted = "dead_letter"
    max_waiting: int = 20
    deliver_policy: DeliverPolicy = "all"
    start_seq: int | None = None
    start_time: datetime | None = None
    rate_limit: float | None = None
    rate_burst: int | None = None
    push: Push | None = None

    def __post_init__(self) -> None:
        check_filters(self.filters)
        if not self.name:
            raise ConfigurationError("A consumer needs a name.")
        if not 0.1 <= self.ack_wait <= 86400:
            raise ConfigurationError(f"ack_wait={self.ack_wait} of consumer {self.name!r} must be from 0.1 s to a day.")
        if not 1 <= self.max_ack_pending <= 1_000_000:
            raise ConfigurationError(
                f"max_ack_pending={self.max_ack_pending} of consumer {self.name!r} must be from 1 to 1,000,000."
            )
        if self.max_deliver != -1 and not 1 <= self.max_deliver <= 1_000_000:
            raise ConfigurationError(
                f"max_deliver={self.max_deliver} of consumer {self.name!r} must be from 1 to 1,000,000, or -1 for no limit."
            )
        if self.on_exhausted not in get_args(OnExhausted):
            raise ConfigurationError(
                f"on_exhausted={self.on_exhausted!r} of consumer {self.name!r} must be 'dead_letter', 'block' or 'drop'."
            )
        if not 1 <= self.max_waiting <= 100_000:
            raise ConfigurationError(
                f"max_waiting={self.max_waiting} of consumer {self.name!r} must be from 1 to 100,000."
            )
        self._check_start()
        self._check_rate()

    def _check_start(self) -> None:
        if self.deliver_policy not in get_args(DeliverPolicy):
            raise ConfigurationError(
                f"deliver_policy={self.deliver_policy!r} of consumer {self.name!r} must be one of"
                f" {', '.join(map(repr, get_args(DeliverPolicy)))}."
            )
        for policy, setting in (("by_start_seq", "start_seq"), ("by_start_time", "start_time")):
            given = getattr(self, setting) is not None
            if given != (self.deliver_policy == policy):
                raise ConfigurationError(
                    f"Consumer {self.name!r}: deliver_policy={policy!r} and {setting} go together;"
                    f" {setting} is {'given' if given else 'missing'}, and the policy is {self.deliver_policy!r}."
                )
        if self.start_seq is not None and not 1 <= self.start_seq < 2**62:
            raise ConfigurationError(f"start_seq={self.start_seq} of consumer {self.name!r} must be 1 or more.")
        if self.start_time is not None and self.start_time.tzinfo is None:
            raise ConfigurationError(
                f"start_time={self.start_time} of consumer {self.name!r} has no zone: say datetime(…, tzinfo=timezone.utc)."
            )

    def _check_rate(self) -> None:
        if self.rate_limit is not None and not 0 < self.rate_limit <= FASTEST_RATE:
            raise ConfigurationError(
                f"rate_limit={self.rate_limit} of consumer {self.name!r} must be more than 0 messages a second, and at most"
                f" {FASTEST_RATE:,}."
            )
        if self.rate_burst is None:
            return
        if self.rate_limit is None:
            raise ConfigurationError(
                f"rate_burst of consumer {self.name!r} needs a rate_limit: without it nothing is held back."
            )
        if not 1 <= self.rate_burst <= FASTEST_RATE:
            raise ConfigurationError(
                f"rate_burst={self.rate_burst} of consumer {self.name!r} must be from 1 to {FASTEST_RATE:,} messages."
            )
