"""The state of declarations, and what declares each kind of thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.app.consumer import Consumer
from headrace.app.periodic.schedule import Schedule
from headrace.model.errors import ConfigurationError
from headrace.model.specs import StreamSpec
from headrace.runtime.formats.format import StreamFormat, check_conditions
from headrace.runtime.handlers.middleware import Middleware
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.settling.dead_letters import DeadLetterHook
from headrace.sources.postgres.spec import PostgresSpec

MAX_SCHEDULES = 1000
"""The largest number of schedules of an app. A process asks for all of them with one query."""


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
        if spec.stream in self._formats:
            check_conditions(self._formats[spec.stream], spec)
        self.consumers.append(consumer)

    def _check_open(self) -> None:
        """Raise `ConfigurationError` if nothing can be declared any more."""
