"""The settings of streams and consumers, as the database keeps them."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.conditions.tree import MAX_JSON_BYTES
from headrace.model.durations import Duration, rate, require_zone, seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import MAX_FILTERS, check_filters
from headrace.model.push import Push
from headrace.model.settings import OlderName, Setting, check, settings_of

OnExhausted = Literal["dead_letter", "block", "drop"]
DeliverPolicy = Literal["all", "new", "by_start_seq", "by_start_time", "last_per_key"]
Retention = Literal["limits", "interest"]

_CENTURY = 100 * 365 * 86400


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
                    f"{self!r} is invalid: its durations and its factor are finite and not negative.", field="backoff"
                )
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(
                f"jitter={self.jitter} of a Backoff must be from 0 to 1: the share that chance may take away.",
                field="backoff",
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
        """Make a backoff from a value: a `Backoff`, one delay, a list of delays, or None for the default."""
        if value is None:
            return cls()
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value:
                raise ConfigurationError("backoff=[] is empty: list at least one delay, such as ['1s', '10s', '1m'].")
            return cls(delays=tuple(seconds(delay, "backoff") for delay in value))
        return cls(delays=(seconds(value, "backoff"),))


def parsed(spec: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as you write them, such as a duration as text or one filter, in the form of the spec.

    Raises `ConfigurationError` or `InvalidFilter`.
    """
    known = settings_of(spec)
    return {name: _parsed_field(known[name], value) for name, value in given.items()}


def _parsed_field(setting: Setting, value: Any) -> Any:
    try:
        return _parsed(setting, value)
    except (ConfigurationError, InvalidInput) as error:
        error.field = setting.name
        raise


def _parsed(setting: Setting, value: Any) -> Any:
    if setting.kind is Backoff:
        return Backoff.of(value)
    if value is None:
        return None
    if setting.unit == "seconds":
        return seconds(value, setting.name)
    if setting.unit == "messages per second":
        return rate(value)
    if setting.name == "filters":
        return check_filters(value)
    return conditions.parse(value) if setting.kind is Condition else value


_GB = 10**9
_MIN_STORAGE, _MAX_BYTES = 1_000_000, 2**60


def _bytes_of(gigabytes: float) -> int:
    if not 0 < gigabytes <= _MAX_BYTES / _GB:  # nor infinite, nor no number
        raise ConfigurationError(f"`max_storage_gb` must be a number of gigabytes above 0, not {gigabytes!r:.60}.")
    return round(gigabytes * _GB)


_MAX_STORAGE_GB = OlderName(
    "max_storage_gb",
    "`max_storage` in gigabytes of 1,000,000,000 bytes.",
    int | float,
    _bytes_of,
    lambda size: size // _GB if size % _GB == 0 else size / _GB,
    (_MIN_STORAGE / _GB, _MAX_BYTES / _GB),
)

_PROCESS_UNMODIFIED = OlderName(
    "process_unmodified",
    "The opposite of `dedupe`. `false` means that a message with the same data as the latest one of its key is not"
    " processed again. In a stream without `one_message_per_key` each message counts for itself, so there it is"
    " always `true`, and `false` has no effect.",
    bool,
    operator.not_,
    operator.not_,
)


class StreamSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a stream. Without any limit it keeps all messages.

    Args:
        name: 1 to 48 lower-case letters, digits, `-` and `_`.
        retention: `limits` applies the limits below. `interest` keeps a message until every consumer is done
            with it, whatever else is set. Without a consumer, nothing is removed.
        retain_up_to: Messages older than this are removed.
        retain_at_least: Younger messages are kept whatever the stream's size. If that leaves no room,
            publishing is refused (`StreamFull`, in SQL `HR005`) until there is some.
        max_storage: The size on disk above which the oldest messages are removed.
        one_message_per_key: A new message replaces the previous one of the same key (compaction). It
            can't be changed after the stream is created.
        dedupe: A payload that equals the latest one of its key is not published, compared by the SHA-256 of its
            JSON, unless that one has a time to live. It needs `one_message_per_key`.
        tombstones: A `null` payload deletes its key, after every consumer has received it. It needs
            `one_message_per_key`.
        dedupe_window: How long message ids are remembered, so that a repeated publish has no effect.
        index_keys: An index of keys, so that the messages of a key or of a filter are found without searching the
            stream. Publishing takes longer. A stream with `one_message_per_key` always has one.
    """

    name: Annotated[str, Setting(example="mystream", fixed=True)]
    retention: Annotated[Retention, Setting()] = "limits"
    retain_up_to: Annotated[
        float | None, Setting(unit="seconds", limits=(1, _CENTURY), otherwise="no limit", example="30d")
    ] = None
    retain_at_least: Annotated[
        float | None, Setting(unit="seconds", limits=(1, _CENTURY), otherwise="no limit", example="1d")
    ] = None
    max_storage: Annotated[
        int | None,
        Setting(
            unit="bytes", limits=(_MIN_STORAGE, _MAX_BYTES), otherwise="no limit", example="10GB", older=_MAX_STORAGE_GB
        ),
    ] = None
    one_message_per_key: Annotated[bool, Setting()] = False
    dedupe: Annotated[bool, Setting(older=_PROCESS_UNMODIFIED)] = False
    tombstones: Annotated[bool, Setting()] = False
    dedupe_window: Annotated[float, Setting(unit="seconds", limits=(0, 30 * 86400), example="5m")] = 120.0
    index_keys: Annotated[bool, Setting()] = False

    def __post_init__(self) -> None:
        check(self, self._owner)
        if (
            self.retain_up_to is not None
            and self.retain_at_least is not None
            and self.retain_at_least > self.retain_up_to
        ):
            raise ConfigurationError(
                f"`retain_at_least` of {self._owner} is {self.retain_at_least:g} s and `retain_up_to` is {self.retain_up_to:g} s:"
                " retain_at_least must not be longer than retain_up_to."
            )
        if self.retention == "interest" and self.retain_up_to is not None:
            raise ConfigurationError(
                f"The stream {self.name!r} can't keep messages until every consumer is done (retention='interest') and remove them after a"
                " time (retain_up_to): choose one. retain_at_least keeps what is done for a while."
            )
        for setting in ("dedupe", "tombstones"):
            if getattr(self, setting) and not self.one_message_per_key:
                raise ConfigurationError(
                    f"{setting} of {self._owner} needs one_message_per_key: without it there is no earlier message to compare with or"
                    " delete."
                )

    @property
    def _owner(self) -> str:
        return f"the stream {self.name!r}"


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer.

    Servers send the messages of a consumer with `push`. Without it, workers lease them.

    Args:
        stream: The stream that it reads.
        name: The consumer's name, unique on its stream.
        filters: Which keys to read: one filter or several, at most 100. `*` matches one token, and `>` the
            rest.
        where: A condition that the content of these messages must meet.
        ordered: Whether the messages of a key are delivered strictly in order.
        ack_wait: The visibility timeout. A lease expires after it unless it is extended.
        max_ack_pending: The maximum number of messages that are leased and not settled, over all processes.
        max_deliver: The number of attempts before a message is exhausted.
        max_waiting: The maximum number of HTTP requests that wait for messages at each server process.
        deliver_policy: Where a new consumer starts. `all` starts at the first message, `new` after the last
            one, `by_start_seq` at `start_seq`, and `by_start_time` at `start_time`. `last_per_key` delivers the
            last message of each key, and then new ones.
        start_seq: The seq at which a new consumer starts.
        start_time: The time at which a new consumer starts.
        backoff: The delay before the next attempt, or a list with one for each attempt, of which the last
            repeats.
        on_exhausted: What happens to an exhausted message. `dead_letter` makes it a dead letter, `block` makes
            it one and blocks its key until you redrive or purge it, and `drop` discards it.
        rate_limit: The maximum rate of deliveries, over all processes.
        rate_burst: The maximum number of messages that are delivered together after a pause. It needs
            `rate_limit`.
        push: The URL to which servers send the messages, and how.
        history: How long it is remembered when each message was done, by which process, and how long that took.
    """

    stream: Annotated[str, Setting(fixed=True)]
    name: Annotated[str, Setting(example="us_orders", fixed=True)]
    filters: Annotated[
        tuple[str, ...],
        Setting(
            length=(1, MAX_FILTERS),
            otherwise='`">"`',
            example="orders.us.>",
            names=("filter", "filter_key_pattern", "filters"),
        ),
    ] = (">",)
    where: Annotated[
        Condition | None, Setting(length=(1, MAX_JSON_BYTES), otherwise="no condition", example="data.total > 100")
    ] = None
    ordered: Annotated[bool, Setting()] = True
    ack_wait: Annotated[
        float, Setting(unit="seconds", limits=(0.1, 86400), example="1m", names=("ack_wait_ms", "ack_wait"))
    ] = 30.0
    max_ack_pending: Annotated[int, Setting(limits=(1, 1_000_000))] = 1000
    max_deliver: Annotated[int, Setting(limits=(1, 1_000_000), unlimited=-1)] = 10
    max_waiting: Annotated[int, Setting(limits=(1, 100_000))] = 20
    deliver_policy: Annotated[DeliverPolicy, Setting(fixed=True)] = "all"
    start_seq: Annotated[int | None, Setting(limits=(1, 2**62 - 1), otherwise="none", fixed=True)] = None
    start_time: Annotated[datetime | None, Setting(otherwise="none", fixed=True)] = None
    backoff: Annotated[
        Backoff,
        Setting(
            unit="seconds",
            otherwise="exponential, from 1 second to 5 minutes, with jitter",
            example="1s,10s,1m",
            names=("backoff_ms", "backoff"),
        ),
    ] = Backoff()
    on_exhausted: Annotated[OnExhausted, Setting()] = "dead_letter"
    rate_limit: Annotated[
        float | None,
        Setting(
            unit="messages per second", limits=(0, 1_000_000), exclusive=True, otherwise="no limit", example="100/s"
        ),
    ] = None
    rate_burst: Annotated[
        int | None, Setting(unit="messages", limits=(1, 1_000_000), otherwise="one second of the rate")
    ] = None
    push: Annotated[Push | None, Setting(otherwise="none")] = None
    history: Annotated[
        float | None, Setting(unit="seconds", limits=(60, 366 * 86400), otherwise="none", example="7d")
    ] = None

    def __post_init__(self) -> None:
        check_filters(self.filters)
        if not self.name:
            raise ConfigurationError("A consumer needs a name.", field="name")
        check(self, f"the consumer {self.name!r}")
        for policy, setting in (("by_start_seq", "start_seq"), ("by_start_time", "start_time")):
            given = getattr(self, setting) is not None
            if given != (self.deliver_policy == policy):
                raise ConfigurationError(
                    f"Consumer {self.name!r}: deliver_policy={policy!r} and {setting} go together;"
                    f" {setting} is {'given' if given else 'missing'}, and the policy is {self.deliver_policy!r}.",
                    field=setting if given else "deliver_policy",
                )
        require_zone(self.start_time, "start_time", f" of consumer {self.name!r}")
        if self.rate_burst is not None and self.rate_limit is None:
            raise ConfigurationError(
                f"rate_burst of consumer {self.name!r} needs a rate_limit: without it nothing is held back.",
                field="rate_burst",
            )
