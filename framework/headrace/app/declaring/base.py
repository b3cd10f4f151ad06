"""The state of declarations, and what declares each kind of thing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from headrace.app.consumer import Consumer
from headrace.app.periodic.schedule import Schedule
from headrace.model.errors import ConfigurationError
from headrace.model.keys import has_partial_wildcard
from headrace.model.log import Log
from headrace.model.specs import StreamSpec
from headrace.runtime.formats.format import StreamFormat, check_conditions
from headrace.runtime.handlers.middleware import Middleware
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.settling.dead_letters import DeadLetterHook
from headrace.sources.postgres.spec import PostgresSpec

log = Log("headrace")

MAX_SCHEDULES = 1000
"""The largest number of schedules of an app. A process asks for all of them with one query."""


P = ParamSpec("P")
R = TypeVar("R")

_WORDS_OF_OTHERS = {
    "max_deliver, the number of attempts including the first": ("retries", "max_retries", "max_attempts", "attempts"),
    "backoff": ("delay", "retry_delay", "retry_backoff", "countdown", "default_retry_delay"),
    "concurrency": ("workers", "max_workers", "max_concurrency", "actors"),
    "max_ack_pending": ("prefetch", "prefetch_count", "max_in_flight"),
    "ack_wait": ("visibility_timeout", "lease", "lock_timeout"),
    "timeout": ("time_limit", "max_runtime"),
    "batch": ("batch_size", "max_batch", "max_messages"),
    "name": ("group", "group_id", "durable", "consumer"),
    "stream": ("topic", "topics", "queue", "subject", "channel"),
    "filter": ("key", "keys", "filters", "pattern", "routing_key"),
    "deliver_policy": ("offset", "auto_offset_reset", "start", "from_beginning"),
    "on_exhausted": ("dead_letter", "dlq", "on_failure"),
    "retain_up_to": ("ttl", "max_age", "retention_ms"),
    "max_storage": ("max_bytes", "max_size"),
    "one_message_per_key": ("compact", "compaction", "cleanup_policy"),
    "zone": ("timezone", "tz"),
    "into": ("to",),
}
"""Arguments of declarations, with what other systems call them."""


def named_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method refuse keyword arguments that it doesn't have with a `ConfigurationError` that suggests one it has."""
    known = list(inspect.signature(method).parameters)

    @functools.wraps(method)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in given:
            if name not in known:
                meant = [
                    ours for ours, theirs in _WORDS_OF_OTHERS.items() if name in theirs and ours.split(",")[0] in known
                ]
                hint = "".join(f" Did you mean {ours}?" for ours in (meant or get_close_matches(name, known, 1))[:1])
                raise ConfigurationError(f"{method.__name__}() has no argument {name!r}.{hint}")
        return method(*args, **given)

    return checked


def arguments(local_variables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method, from what `locals()` returns on its first line."""
    return {name: value for name, value in local_variables.items() if name != "self"}


class Declaring:
    """Keeps what is declared, and refuses what contradicts it."""

    def __init__(self, streams: Sequence[str] = ()) -> None:
        self.consumers: list[Consumer] = []
        self.captures: list[PostgresSpec] = []
        self.schedules: list[Schedule] = []
        self._streams: dict[str, StreamSpec | None] = dict.fromkeys(streams)
        self._middleware: list[Middleware] = []
        self._formats: dict[str, StreamFormat] = {}
        self._dead_letter_hooks: list[DeadLetterHook] = []

    def _add_format(self, stored_as: StreamFormat) -> None:
        name = stored_as.stream
        if name in self._formats:
            raise ConfigurationError(
                f"The stream {name!r} is declared with a type twice: declare it once, and import what app.stream returns."
            )
        for consumer in self.consumers:
            if consumer.spec.stream == name:
                check_conditions(stored_as, consumer.spec)
        for schedule in self.schedules:
            if schedule.spec.stream == name:
                schedule.check_format(stored_as)
        self._formats[name] = stored_as

    def _publishes(self, stream: str) -> Publisher:
        """Return what publishes to a stream of this app or router. Raises `ConfigurationError`."""
        raise NotImplementedError

    def _add_capture(self, spec: PostgresSpec) -> None:
        self._check_open()
        if any(spec.name == other.name for other in self.captures):
            raise ConfigurationError(f"Two captures are both called {spec.name!r}: pass name=… to one of them.")
        self.captures.append(spec)

    def _add_schedule(self, schedule: Schedule) -> None:
        self._check_open()
        name = schedule.spec.name
        if any(name == other.spec.name for other in self.schedules):
            raise ConfigurationError(f"Two schedules are both called {name!r}: pass name=… to one of them.")
        if len(self.schedules) >= MAX_SCHEDULES:
            raise ConfigurationError(
                f"An app has at most {MAX_SCHEDULES:,} schedules. Publish messages with deliver_at=… for more."
            )
        if schedule.spec.stream in self._formats:
            schedule.check_format(self._formats[schedule.spec.stream])
        self.schedules.append(schedule)

    def _add(self, consumer: Consumer) -> None:
        self._check_open()
        spec = consumer.spec
        for other in self.consumers:
            if (other.spec.stream, other.spec.name) == (spec.stream, spec.name):
                raise ConfigurationError(
                    f"Two handlers of {spec.stream!r} are both called {spec.name!r}, and would share one place in the stream:"
                    " pass name=… to one of them."
                )
        for partial in filter(has_partial_wildcard, spec.filters):
            hint = "write a wildcard as a whole token, such as orders.*.new, or use where=\"key like 'orders.eu%'\""
            log.warning(
                "a wildcard inside a token is an ordinary character", consumer=spec.name, filter=partial, hint=hint
            )
        if spec.stream in self._formats:
            check_conditions(self._formats[spec.stream], spec)
        self.consumers.append(consumer)

    def _check_open(self) -> None:
        """Raise `ConfigurationError` if nothing can be declared any more."""
