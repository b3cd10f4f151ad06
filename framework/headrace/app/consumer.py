"""The declaration of a consumer, made by `@app.consumer`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.conditions import Condition, parse
from headrace.model.durations import Duration, rate, seconds
from headrace.model.errors import ConfigurationError
from headrace.model.handling import Breaker, Handling, Runner, bounds
from headrace.model.keys import check_filters
from headrace.model.specs import Backoff, ConsumerSpec
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.runners import check_process

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")

DEFAULT_RUN = 100
"""Messages of a key in one batch, if `group_by_key` is set without `batch`."""


class Consumer(msgspec.Struct, frozen=True):
    """A consumer as declared: its settings in the store, its handler, and how this process runs the handler."""

    spec: ConsumerSpec
    handler: Handler
    handling: Handling


def define(
    function: Callable[..., Any],
    stream: str,
    *,
    filter: str | Sequence[str],  # noqa: A002 - the word of the field
    where: str | Mapping[str, Any] | Condition | None,
    name: str | None,
    concurrency: int | tuple[int, int],
    timeout: Duration | None,
    ack_wait: Duration,
    backoff: Backoff | Duration | Sequence[Duration] | None,
    rate_limit: float | str | None,
    batch: int | None,
    batch_timeout: Duration,
    group_by_key: bool,
    runner: Runner | None,
    breaker: Breaker | bool | int | None,
    handling: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Consumer:
    """Make a consumer from the decorator's arguments. Raises `ConfigurationError` or `InvalidFilter`.

    Args:
        handling: further settings of `Handling`, taken unchanged.
        settings: further settings of `ConsumerSpec`, taken unchanged.
    """
    if group_by_key and batch is None:
        batch = min(DEFAULT_RUN, settings["max_ack_pending"])
    handler = Handler(function, batch=batch is not None, transactional=bool(handling.get("transactional")))
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
        ack_wait=seconds(ack_wait, "ack_wait"),
        backoff=Backoff.of(backoff),
        rate_limit=rate(rate_limit),
        **settings,
    )
    try:
        return Consumer(
            spec,
            handler,
            Handling(
                concurrency=bounds(concurrency),
                timeout=None if timeout is None else seconds(timeout, "timeout"),
                batch=batch,
                batch_timeout=seconds(batch_timeout, "batch_timeout"),
                group_by_key=group_by_key,
                runner=_runner(runner, handler),
                breaker=Breaker.of(breaker),
                **handling,
            ),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"Consumer {name!r}: {error}") from None


def _runner(given: Runner | None, handler: Handler) -> Runner:
    if given is None:
        return "async" if handler.is_async else "thread"
    if (given == "async") != handler.is_async:
        raise ConfigurationError(
            f"runner={given!r} and {'async def' if handler.is_async else 'def'} don't go together: a coroutine function runs on the"
            " event loop, a plain function in a thread or in a process."
        )
    if given == "process":
        check_process(handler)
    return given


def check_together(consumer: Consumer) -> None:
    """Raise `ConfigurationError` if settings of `ConsumerSpec` and `Handling` contradict each other."""
    spec, handling = consumer.spec, consumer.handling
    if handling.batch is not None and handling.batch > spec.max_ack_pending:
        raise ConfigurationError(
            f"Consumer {spec.name!r}: batch={handling.batch} never fills with max_ack_pending={spec.max_ack_pending}: raise that."
        )
    if handling.transactional and not consumer.handler.is_async:
        raise ConfigurationError(
            f"Consumer {spec.name!r}: transactional=True needs an `async def`: its transaction belongs to the event loop. A plain function"
            " may ack in a transaction of its own, with headrace.drivers.sync."
        )
    if handling.key_concurrency is not None and spec.ordered:
        raise ConfigurationError(
            f"Consumer {spec.name!r}: key_concurrency={handling.key_concurrency} needs ordered=False: the messages of a key are handled"
            " in order, one at a time."
        )
    if handling.ack_before_next and not spec.ordered:
        raise ConfigurationError(
            f"Consumer {spec.name!r}: ack_before_next=True needs the order of keys: leave out ordered=False, or ack_before_next."
        )
    if handling.group_by_key and not spec.ordered:
        raise ConfigurationError(
            f"Consumer {spec.name!r}: group_by_key needs the order of keys: leave out ordered=False."
        )
