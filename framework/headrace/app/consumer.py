"""The declaration of a consumer, made by `@app.consumer`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.app.streams.accepting import check_payload, check_result
from headrace.app.streams.stream import Stream, name_of_stream
from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError
from headrace.model.handling import Breaker, Handling, Runner, bounds
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec, parsed
from headrace.model.text.sizes import size
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.middleware import check_middleware
from headrace.runtime.handlers.runners import check_process

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")

DEFAULT_RUN = 100
"""Messages of a key in one batch, if `group_by_key` is set without `batch`."""


class Consumer(msgspec.Struct, frozen=True):
    """A consumer as declared: its settings in the store, its handler, and how this process runs the handler."""

    spec: ConsumerSpec
    handler: Handler
    handling: Handling


def define(function: Callable[..., Any], given: Mapping[str, Any]) -> Consumer:
    """Make a consumer from the decorator's arguments. Raises `ConfigurationError` or `InvalidFilter`."""
    stream, publishes = given["stream"], given["publishes"]
    arguments = {("filters" if name == "filter" else name): name_of_stream(value) for name, value in given.items()}
    settings = {name: arguments.pop(name) for name in settings_of(ConsumerSpec) if name in arguments}
    handling = {**arguments, "middleware": check_middleware(arguments["middleware"])}
    if handling["group_by_key"] and handling["batch"] is None:
        handling["batch"] = min(DEFAULT_RUN, settings["max_ack_pending"])
    carries = stream.type if isinstance(stream, Stream) else Any
    handler = Handler(
        function, batch=handling["batch"] is not None, transactional=bool(handling["transactional"]), carries=carries
    )
    if isinstance(stream, Stream):
        check_payload(handler, stream, handling["runner"])
    if isinstance(publishes, Stream):
        check_result(function, handler.name, publishes)
    name = settings["name"] = settings["name"] or handler.name
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"The consumer name {name!r} can't be used: take up to 63 letters, digits, '_', '-' and '.'; pass name=… to choose one."
        )
    spec = ConsumerSpec(**parsed(ConsumerSpec, settings))
    try:
        timeout = handling["timeout"]
        handling |= {
            "concurrency": bounds(handling["concurrency"]),
            "timeout": None if timeout is None else seconds(timeout, "timeout"),
            "batch_bytes": None if handling["batch_bytes"] is None else size(handling["batch_bytes"], "batch_bytes"),
            "batch_timeout": seconds(handling["batch_timeout"], "batch_timeout"),
            "runner": _runner(handling["runner"], handler),
            "breaker": Breaker.of(handling["breaker"]),
        }
        return Consumer(spec, handler, Handling(**handling))
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
            " may ack in its own transaction, with headrace.drivers.sync."
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
