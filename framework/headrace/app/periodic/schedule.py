"""A declared schedule, and the messages that it makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import msgspec

from headrace.flow.due_times import DueTimes, due_times, zone_of
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.schedules import ScheduleSpec
from headrace.runtime.formats.format import StreamFormat
from headrace.runtime.isolation import in_own_task

SCHEDULE_HEADER, DUE_HEADER = "headrace-schedule", "headrace-due-at"
"""The headers of a periodic message: the name of its schedule, and its due time."""

TIME_LIMIT = 60.0
"""Seconds that the functions of a schedule may take for one message."""

Made = Callable[[datetime], Any | Awaitable[Any]]
"""A function of the due time, in the time zone of the schedule."""

Stored = Callable[[str, str, Any, Mapping[str, Any]], tuple[str, str | None]]
"""Encodes data and headers as a stream stores them, see `Publisher.stored`."""


class MessageTexts(NamedTuple):
    """The key of a message, and its data and headers as JSON."""

    key: str
    data: str
    headers: str | None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of an app.

    Attributes:
        spec: what is stored and compared.
        due: its due times.
        key: returns the key, or None if it is fixed.
        data: returns the data, or None if it is fixed.
    """

    spec: ScheduleSpec
    due: DueTimes
    key: Made | None = None
    data: Made | None = None

    async def message(self, due: datetime, threads: anyio.CapacityLimiter, stored: Stored) -> MessageTexts:
        """Make the message of a due time. Plain functions run in threads, whose number is limited.

        Args:
            due: the due time.
            threads: limits the threads.
            stored: encodes the data and the headers.

        Raises:
            InvalidInput: a key or data that can't be stored.
            Errors of its functions are raised unchanged, and `TimeoutError` if they take too long.
        """
        spec = self.spec
        local = due.astimezone(zone_of(spec.zone))
        with anyio.fail_after(TIME_LIMIT):
            key = spec.key if self.key is None else await in_own_task(_call, self.key, local, threads)
            data = self._fixed() if self.data is None else await in_own_task(_call, self.data, local, threads)
        check_key(key)  # type: ignore[arg-type]
        headers = {**spec.headers, SCHEDULE_HEADER: spec.name, DUE_HEADER: due}
        return MessageTexts(str(key), *stored(spec.stream, str(key), data, headers))

    def _fixed(self) -> Any:
        """The fixed data. It was checked against the type of the stream, so it is published as JSON."""
        return None if self.spec.data is None else msgspec.Raw(payloads.encode(self.spec.data).encode())

    def check_format(self, stored_as: StreamFormat) -> None:
        """Raise `ConfigurationError` if the fixed data can't be published to a stream with this format."""
        if self.data is not None:
            return
        spec = self.spec
        if stored_as.codec is not None and spec.data is not None:
            raise ConfigurationError(
                f"The payloads of the stream {spec.stream!r} are encoded, but the settings of the schedule {spec.name!r} are stored"
                " as they are: pass a function of the due time that returns the data."
            )
        try:
            stored_as.check(spec.data)
        except Exception as error:  # code of users in a type may raise anything
            raise ConfigurationError(
                f"The data of the schedule {spec.name!r} does not fit the stream {spec.stream!r}: {error}"
            ) from error


async def _call(function: Made, due: datetime, threads: anyio.CapacityLimiter) -> Any:
    """Call a function of the app. A plain one runs in a thread, which is left to itself if it takes too long."""
    if iscoroutinefunction(function):
        return await function(due)
    result = await anyio.to_thread.run_sync(function, due, abandon_on_cancel=True, limiter=threads)
    return await result if isawaitable(result) else result


def define(
    *,
    every: Duration,
    stream: str,
    zone: str | None,
    name: str | None,
    key: str | Made | None,
    data: Any,
    headers: Mapping[str, Any] | None,
    **settings: Any,
) -> Schedule:
    """Make a schedule from the arguments of `App.every`, of which `settings` are stored as they are. Raises
    `ConfigurationError`.
    """
    due = due_times(every, zone)
    made = {what: one for what, one in (("key", key), ("data", data)) if callable(one)}
    name = stream if name is None else name
    spec = ScheduleSpec(
        name=name,
        stream=stream,
        every=due.text,
        zone=zone,
        key=None if callable(key) else name if key is None else key,
        data=None if callable(data) else _plain(data, f"The data of the schedule {name!r}"),
        headers=_plain(dict(headers or {}), f"The headers of the schedule {name!r}"),
        functions={what: _name(function) for what, function in made.items()},
        **settings,
    )
    spec.check()
    if spec.key is not None:
        _check_key(spec)
    return Schedule(spec=spec, due=due, key=made.get("key"), data=made.get("data"))


def _plain(value: Any, what: str) -> Any:
    """Return the value as JSON has it."""
    try:
        return msgspec.json.decode(payloads.encode(value))
    except InvalidInput as error:
        raise ConfigurationError(f"{what} can't be used. {error}") from error


def _check_key(spec: ScheduleSpec) -> None:
    try:
        check_key(spec.key)  # type: ignore[arg-type]
    except InvalidInput as error:
        raise ConfigurationError(f"The key of the schedule {spec.name!r} can't be used. {error}") from error


def _name(function: Any) -> str:
    """The name under which a function is stored and shown. A deployment that moves it changes the schedule."""
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"
