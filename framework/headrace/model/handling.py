"""How a process runs a consumer's handler. The store doesn't keep these settings, and they may differ between
processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from headrace.model.errors import ConfigurationError

OnBatchError = Literal["retry", "bisect"]
"""What happens to a batch if the handler raises. `retry` delivers the whole batch again. `bisect` tries its
halves until it has found the messages that fail.
"""

Runner = Literal["async", "thread", "process"]

MOST_ACTORS = 10_000
LARGEST_BATCH = 500_000
MOST_PER_KEY = 1_000
LONGEST_WAIT = 60.0


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A circuit breaker. It pauses a consumer while its handlers fail in a row, and then probes with one message.

    Args:
        failures: the number of consecutive failures that opens the breaker.
        pause: seconds until the first probe. Each failed probe doubles it.
        longest: the longest pause in seconds.
    """

    failures: int = 20
    pause: float = 5.0
    longest: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.failures <= 1_000_000:
            raise ConfigurationError(f"failures={self.failures} of a breaker must be from 1 to 1,000,000.")
        if not 0 < self.pause <= self.longest <= 86400:
            raise ConfigurationError(
                f"pause={self.pause:g} and longest={self.longest:g} of a breaker must be more than 0, in order, and at most a day."
            )

    @classmethod
    def of(cls, given: Breaker | bool | int | None) -> Breaker | None:
        """Convert the value that is given to the decorator: True for the defaults, a number of failures, a
        `Breaker`, or None for no breaker.
        """
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, int):
            return cls(failures=given)
        if isinstance(given, Breaker):
            return given
        raise ConfigurationError(f"breaker={given!r} must be True, a number of failures, or a Breaker(…).")


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """How one process runs the handler of a consumer.

    Args:
        concurrency: the minimum and maximum number of handlers that run at a time.
        timeout: seconds that the handler may take for one message or one batch. None means no limit.
        transactional: run the handler inside a database transaction, and ack in that transaction.
        batch: the maximum number of messages in a batch. None for a handler of single messages.
        batch_bytes: a batch is full once the payloads of its messages have this many bytes. None for no such limit.
        batch_timeout: seconds to wait for a batch to fill.
        group_by_key: each batch has messages of one key only.
        on_batch_error: what happens to a batch if the handler raises.
        runner: where the handler runs: on the event loop, in a thread, or in a worker process.
        key_concurrency: how many messages of one key are handled at a time. For consumers that are not ordered.
        ack_before_next: start the next message or batch of a key only after the acks of the previous one
            are committed.
        priority: in this process, consumers with a higher priority go first.
        breaker: the circuit breaker. None for no breaker.
        publishes: the stream to which the handler's return value is published, in the same transaction as the ack.
        middleware: middleware of this handler alone, the outermost first.
        dead_letter_hooks: what is called for each of its messages that becomes a dead letter, besides the app's hooks.
    """

    concurrency: tuple[int, int] = (1, 64)
    timeout: float | None = None
    transactional: bool = False
    batch: int | None = None
    batch_bytes: int | None = None
    batch_timeout: float = 0.0
    group_by_key: bool = False
    on_batch_error: OnBatchError = "retry"
    runner: Runner = "async"
    key_concurrency: int | None = None
    ack_before_next: bool = False
    priority: int = 0
    breaker: Breaker | None = None
    publishes: str | None = None
    middleware: tuple[Callable[..., Any], ...] = ()
    dead_letter_hooks: tuple[Callable[..., Any], ...] = ()

    def __post_init__(self) -> None:
        low, high = self.concurrency
        if not 1 <= low <= high <= MOST_ACTORS:
            raise ConfigurationError(
                f"concurrency={self.concurrency!r} must be a number from 1 to {MOST_ACTORS:,}, or two, the least and the most, such"
                " as (1, 64)."
            )
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigurationError(f"timeout={self.timeout:g} leaves no time at all: leave it out for no timeout.")
        if self.batch is not None and not 1 <= self.batch <= LARGEST_BATCH:
            raise ConfigurationError(f"batch={self.batch} must be from 1 to {LARGEST_BATCH:,} messages.")
        if not 0 <= self.batch_timeout <= LONGEST_WAIT:
            raise ConfigurationError(
                f"batch_timeout={self.batch_timeout:g} must be from 0 to {LONGEST_WAIT:g} seconds."
            )
        if self.on_batch_error not in get_args(OnBatchError):
            raise ConfigurationError(f"on_batch_error={self.on_batch_error!r} must be 'retry' or 'bisect'.")
        if self.batch_bytes is not None and self.batch_bytes < 1:
            raise ConfigurationError(f"batch_bytes={self.batch_bytes} must be at least 1 byte.")
        if self.batch is None:
            for setting, given in (
                ("batch_bytes", self.batch_bytes),
                ("batch_timeout", self.batch_timeout),
                ("on_batch_error", self.on_batch_error != "retry"),
            ):
                if given:
                    raise ConfigurationError(f"{setting} goes with batch: say batch=100, or group_by_key=True.")
        if self.key_concurrency is not None and self.batch is not None:
            raise ConfigurationError(
                "key_concurrency and batch don't go together: a batch is one call of the handler, whatever its keys are."
            )
        if self.runner not in get_args(Runner):
            raise ConfigurationError(f"runner={self.runner!r} must be 'thread' or 'process'; async handlers need none.")
        if self.runner == "process" and self.transactional:
            raise ConfigurationError(
                "runner='process' and transactional=True don't go together: a transaction can't leave its process. Return what is"
                " to be written, and write it in another handler; or publish it, with publishes='a-stream'."
            )
        if self.key_concurrency is not None and not 1 <= self.key_concurrency <= MOST_PER_KEY:
            raise ConfigurationError(f"key_concurrency={self.key_concurrency} must be from 1 to {MOST_PER_KEY:,}.")
        if not -1000 <= self.priority <= 1000:
            raise ConfigurationError(f"priority={self.priority} must be from -1000 to 1000.")

    @property
    def rests(self) -> bool:
        """Whether a key's lane waits until the acks are settled. It need not wait for acks in a transaction,
        which are committed when the handler ends.
        """
        return self.ack_before_next and not self.transactional and self.publishes is None

    @property
    def unit(self) -> int:
        """The maximum number of messages in one call of the handler."""
        return self.batch or 1


def bounds(concurrency: Any) -> tuple[int, int]:
    """The minimum and maximum concurrency, from one number or two. Raises `ConfigurationError`."""
    try:
        low, high = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
        return int(low), int(high)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"concurrency={concurrency!r} must be a number such as 16, or two, such as (1, 64)."
        ) from None
