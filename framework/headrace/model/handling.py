"""How a process runs a consumer's handler: what is not the store's business, and may differ from process to process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from headrace.model.errors import ConfigurationError

OnBatchError = Literal["retry", "bisect"]
"""What becomes of a batch whose handler raised: all of it comes again; or halves of it are tried, until what fails is found."""

Runner = Literal["async", "thread", "process"]

MOST_ACTORS = 10_000
LARGEST_BATCH = 500_000
MOST_PER_KEY = 1_000
LONGEST_WAIT = 60.0


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A circuit breaker: when handlers fail again and again, the consumer pauses, and then probes with one message.

    Args:
        failures: so many in a row open it.
        pause: seconds until the first probe; doubled whenever a probe fails ...
        longest: ... up to this.
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
        """From what the decorator takes: True for the defaults, a number of failures, a `Breaker`, or None for no breaker."""
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
    """How the handler of one consumer is run in one process.

    Args:
        concurrency: the least and the most handlers at a time.
        timeout: seconds that the handler may take for one message, or for one batch; None for no limit.
        transactional: run it inside a transaction of the database, and ack there.
        batch: the most messages that it takes at a time; None for a handler of single messages.
        batch_timeout: seconds to wait for a batch to fill.
        group_by_key: a batch is of one key.
        on_batch_error: what becomes of a batch whose handler raised.
        runner: where it runs: on the event loop, in a thread, or in a process of its own.
        key_concurrency: how many messages of a key are handled at a time, of a consumer that is not ordered.
        ack_before_next: a key's next message, or batch, begins once the acks of the one before are committed.
        priority: consumers of a higher one go first in this process.
        breaker: when to pause because of repeated failure.
        publishes: the stream that what the handler returns is published to, together with the ack.
        middleware: what runs around this handler alone, the outermost first.
    """

    concurrency: tuple[int, int] = (1, 64)
    timeout: float | None = None
    transactional: bool = False
    batch: int | None = None
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
        if self.batch is None:
            for setting, given in (
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
        """Whether a key's lane rests until the acks are settled. Acks in a transaction are committed when the handler ends."""
        return self.ack_before_next and not self.transactional and self.publishes is None

    @property
    def unit(self) -> int:
        """How many messages one call of the handler takes at most."""
        return self.batch or 1


def bounds(concurrency: Any) -> tuple[int, int]:
    """The least and the most, from one number or two. Raises `ConfigurationError`."""
    try:
        low, high = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
        return int(low), int(high)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"concurrency={concurrency!r} must be a number such as 16, or two, such as (1, 64)."
        ) from None
