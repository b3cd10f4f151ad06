"""Options for the settings of a stream or a consumer, for both `add` and `edit`. A setting that isn't
given isn't changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import UNSET

from headrace.cli.options.sizes import size_in_bytes
from headrace.cli.options.times import NO_VALUE, duration, past
from headrace.cli.problems import UsageProblem
from headrace.model.durations import rate
from headrace.model.errors import ConfigurationError
from headrace.model.specs import Backoff, DeliverPolicy, OnExhausted, Retention


def _option(name: str, help: str, *, negative: str | None = "") -> Parameter:  # noqa: A002 - as Parameter has it
    return Parameter(name=name, help=help, negative=negative, show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """The stream settings given as options."""

    retention: Annotated[
        Retention | None,
        _option(
            "--retention",
            "What may go: by default what is beyond the limits; with interest what every consumer is done with.",
        ),
    ] = None
    retain_up_to: Annotated[
        str | None, _option("--retain-up-to", "Remove what is older, such as 7d; none for no limit.")
    ] = None
    retain_at_least: Annotated[
        str | None,
        _option("--retain-at-least", "Keep what is younger, such as 1d, and refuse to publish rather than remove it."),
    ] = None
    max_storage: Annotated[
        str | None, _option("--max-storage", "Remove the oldest beyond this size, such as 10GB; none for no limit.")
    ] = None
    one_message_per_key: Annotated[
        bool | None, _option("--one-message-per-key", "Keep only the newest message of each key.", negative=None)
    ] = None
    dedupe: Annotated[
        bool | None, _option("--dedupe", "Don't publish a key's message again while it is unchanged.", negative=None)
    ] = None
    tombstones: Annotated[
        bool | None, _option("--tombstones", "A message whose data is null deletes its key.", negative=None)
    ] = None
    dedupe_window: Annotated[
        str | None, _option("--dedupe-window", "How long message ids are remembered, such as 5m; by default 2m.")
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of `StreamSpec`. Raises `UsageProblem`."""
        return _given(
            retention=_as_is(self.retention),
            retain_up_to=_unless_none(duration, self.retain_up_to, "--retain-up-to"),
            retain_at_least=_unless_none(duration, self.retain_at_least, "--retain-at-least"),
            max_storage=_unless_none(size_in_bytes, self.max_storage, "--max-storage"),
            one_message_per_key=_as_is(self.one_message_per_key),
            dedupe=_as_is(self.dedupe),
            tombstones=_as_is(self.tombstones),
            dedupe_window=_parsed(duration, self.dedupe_window, "--dedupe-window"),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """The consumer settings given as options."""

    filter: Annotated[
        list[str] | None,
        _option("--filter", "Which keys, such as orders.us.>; given several times: any of them. By default all."),
    ] = None
    where: Annotated[
        str | None,
        _option("--where", "Only messages of which this is true, such as 'data.total > 100'; none for no condition."),
    ] = None
    ordered: Annotated[
        bool | None,
        Parameter(
            name="--ordered",
            negative="--unordered",
            show_default=False,
            help="Whether the messages of a key are delivered strictly in order; by default they are.",
        ),
    ] = None
    ack_wait: Annotated[
        str | None, _option("--ack-wait", "How long a message is nobody else's once it is delivered; by default 30s.")
    ] = None
    max_ack_pending: Annotated[
        int | None, _option("--max-ack-pending", "Messages delivered and not yet acked, at most; by default 1000.")
    ] = None
    max_deliver: Annotated[
        int | None,
        _option("--max-deliver", "Attempts before a message is exhausted; by default 10, and -1 for no limit."),
    ] = None
    max_waiting: Annotated[
        int | None, _option("--max-waiting", "Requests that may wait for messages at a time; by default 20.")
    ] = None
    backoff: Annotated[
        str | None,
        _option(
            "--backoff",
            "Waits before the next attempts, such as 1s,10s,1m, the last one repeated; default for"
            " doubling ones from 1s to 5m.",
        ),
    ] = None
    on_exhausted: Annotated[
        OnExhausted | None,
        _option("--on-exhausted", "What becomes of an exhausted message; block: its key waits for a person."),
    ] = None
    rate_limit: Annotated[
        str | None,
        _option(
            "--rate-limit", "Messages delivered at most, over all workers, such as 100/s or 500/m; none for no limit."
        ),
    ] = None
    rate_burst: Annotated[
        str | None,
        _option(
            "--rate-burst",
            "Messages that may come at once after a pause; none for the default: what the rate allows in a second.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of `ConsumerSpec`. Raises `UsageProblem`."""
        return _given(
            filters=UNSET if self.filter is None else tuple(self.filter),
            where=_unless_none(lambda text, _: text, self.where, "--where"),
            ordered=_as_is(self.ordered),
            ack_wait=_parsed(duration, self.ack_wait, "--ack-wait"),
            max_ack_pending=_as_is(self.max_ack_pending),
            max_deliver=_as_is(self.max_deliver),
            max_waiting=_as_is(self.max_waiting),
            backoff=_parsed(_backoff, self.backoff, "--backoff"),
            on_exhausted=_as_is(self.on_exhausted),
            rate_limit=_unless_none(_rate, self.rate_limit, "--rate-limit"),
            rate_burst=_unless_none(_count, self.rate_burst, "--rate-burst"),
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Where a new consumer begins."""

    deliver_policy: Annotated[
        DeliverPolicy | None,
        _option("--deliver-policy", "Where it begins; with last_per_key at the newest message of each key."),
    ] = None
    start_seq: Annotated[int | None, _option("--start-seq", "Begin at this seq.")] = None
    start_time: Annotated[str | None, _option("--start-time", "Begin at this time; 1h is an hour ago.")] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of `ConsumerSpec`.

        `start_seq` or `start_time` sets the matching policy. Raises `UsageProblem`.
        """
        policy = self.deliver_policy
        if policy is None and self.start_seq is not None:
            policy = "by_start_seq"
        elif policy is None and self.start_time is not None:
            policy = "by_start_time"
        return _given(
            deliver_policy=_as_is(policy),
            start_seq=_as_is(self.start_seq),
            start_time=_parsed(past, self.start_time, "--start-time"),
        )


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not UNSET}


def _as_is(value: Any) -> Any:
    return UNSET if value is None else value


def _parsed(parse: Callable[[str, str], Any], text: str | None, option: str) -> Any:
    return UNSET if text is None else parse(text, option)


def _unless_none(parse: Callable[[str, str], Any], text: str | None, option: str) -> Any:
    return None if text is not None and text.lower() in NO_VALUE else _parsed(parse, text, option)


def _backoff(text: str, option: str) -> Backoff:
    if text == "default":
        return Backoff()
    return Backoff(delays=tuple(duration(delay, option) for delay in text.split(",")))


def _rate(text: str, option: str) -> float | None:
    try:
        return rate(text)
    except ConfigurationError:
        raise UsageProblem(
            f"{option} {text!r} is not a rate: write '100/s', '500/m', '1000/h', or messages a second."
        ) from None


def _count(text: str, option: str) -> int:
    if not text.isdecimal():
        raise UsageProblem(f"{option} {text!r} is not a number of messages.")
    return int(text)
