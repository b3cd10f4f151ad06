"""What `@app.consumer` makes of a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.model.conditions import Condition, parse
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_filters
from headrace.model.specs import Backoff, ConsumerSpec, DeliverPolicy, OnExhausted
from headrace.runtime.handler import Handler

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")

MOST_ACTORS = 10_000


class Consumer(msgspec.Struct, frozen=True):
    """A handler and how it is to be run. `concurrency` is the least and the most actors; `timeout` is in seconds."""

    spec: ConsumerSpec
    handler: Handler
    concurrency: tuple[int, int]
    timeout: float | None


def define(
    function: Callable[..., Any],
    stream: str,
    *,
    filter: str | Sequence[str],  # noqa: A002 - the word of the field
    where: str | Mapping[str, Any] | Condition | None,
    deliver_policy: DeliverPolicy,
    start_seq: int | None,
    start_time: datetime | None,
    name: str | None,
    concurrency: int | tuple[int, int],
    max_deliver: int,
    ack_wait: Duration,
    max_ack_pending: int,
    backoff: Backoff | Duration | Sequence[Duration] | None,
    on_exhausted: OnExhausted,
    ordered: bool,
    timeout: Duration | None,
) -> Consumer:
    """A consumer from the decorator's arguments. Raises `ConfigurationError` or `InvalidFilter`."""
    handler = Handler(function)
    name = name or handler.name
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"The consumer name {name!r} can't be used: take up to 63 letters, digits, '_', '-' and '.'; pass name=… to choose one."
        )
    spec = ConsumerSpec(
        stream=stream,
        name=name,
        filters=check_filters(filter),
        where=None if where is None else parse(where),
        deliver_policy=deliver_policy,
        start_seq=start_seq,
        start_time=start_time,
        ordered=ordered,
        ack_wait=seconds(ack_wait, "ack_wait"),
        max_ack_pending=max_ack_pending,
        max_deliver=max_deliver,
        backoff=Backoff.of(backoff),
        on_exhausted=on_exhausted,
    )
    limit = None if timeout is None else seconds(timeout, "timeout")
    if limit == 0:
        raise ConfigurationError(f"timeout=0 of consumer {name!r} leaves no time at all: leave it out for no timeout.")
    return Consumer(spec, handler, _bounds(concurrency, name), limit)


def _bounds(concurrency: int | tuple[int, int], name: str) -> tuple[int, int]:
    low, high = (concurrency, concurrency) if isinstance(concurrency, int) else _pair(concurrency, name)
    if not 1 <= low <= high <= MOST_ACTORS:
        raise ConfigurationError(
            f"concurrency={concurrency!r} of consumer {name!r} must be a number from 1 to {MOST_ACTORS:,}, or two, the least"
            " and the most, such as (1, 64)."
        )
    return low, high


def _pair(concurrency: Any, name: str) -> tuple[int, int]:
    try:
        low, high = concurrency
        return int(low), int(high)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"concurrency={concurrency!r} of consumer {name!r} must be a number such as 16, or two, such as (1, 64)."
        ) from None
