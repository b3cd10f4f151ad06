"""Schedules of periodic messages: their settings, which all processes that run them have in common, and their state."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal

import msgspec

from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.text.names import NAME, NAME_RULE

MAX_MISSED = 1000
"""The largest number of missed messages that a schedule catches up with. They are published in one transaction."""

MAX_SETTINGS = 100_000
"""The size in bytes of all settings as JSON. Larger data can be made by a function."""

RESTARTING = ("every", "zone")
"""The settings that make other due times. A schedule that changes them restarts."""

Missed = Literal["skip", "catch_up"]


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, as it is stored.

    Attributes:
        name: 1 to 48 lower-case letters, digits, `-` and `_`. Unique in the database.
        stream: the stream to which it publishes.
        every: a cron expression of five fields, a name such as `@daily`, or an interval such as "15m".
        zone: the IANA name of the time zone of a cron expression.
        key: the key of the messages. None if a function makes it.
        data: the data of the messages. None if a function makes it.
        headers: the headers of the messages, besides those that every schedule adds.
        functions: the functions that make the key and the data, as `module:name`.
        missed: what happens to due times that passed while no process ran. `skip` publishes a message for the latest
            of them, and `catch_up` one for each.
        max_missed: how many of them `catch_up` publishes at most: the latest ones.
        unique_key: the unique key of the messages. Nothing is published while one of it is pending. None for no
            unique key.
    """

    name: str
    stream: str
    every: str
    zone: str | None = None
    key: str | None = None
    data: Any = None
    headers: dict[str, Any] = {}
    functions: dict[str, str] = {}
    missed: Missed = "skip"
    max_missed: int = 100
    unique_key: str | None = None

    def check(self) -> None:
        """Check everything but `every` and `zone`. Raises `ConfigurationError`."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigurationError(f"The schedule name {self.name!r:.80} can't be used. {NAME_RULE}")
        what = f"the schedule {self.name!r}"
        if self.missed not in ("skip", "catch_up"):
            raise ConfigurationError(f"missed={self.missed!r} of {what} must be 'skip' or 'catch_up'.")
        if (
            isinstance(self.max_missed, bool)
            or not isinstance(self.max_missed, int)
            or not 1 <= self.max_missed <= MAX_MISSED
        ):
            raise ConfigurationError(f"max_missed={self.max_missed!r} of {what} must be from 1 to {MAX_MISSED:,}.")
        try:
            PublishOptions(unique_key=self.unique_key)
        except InvalidInput as error:
            raise ConfigurationError(f"unique_key={self.unique_key!r:.80} of {what} can't be used. {error}") from error
        if len(self.settings()) > MAX_SETTINGS:
            raise ConfigurationError(
                f"The data and headers of {what} have more than {MAX_SETTINGS:,} bytes. Pass a function that makes the data."
            )

    def settings(self) -> str:
        """The settings to store, as JSON, without name and stream. Equal settings are equal texts."""
        settings = msgspec.to_builtins(self)
        del settings["name"], settings["stream"]
        if self.unique_key is None:
            del settings["unique_key"]  # processes of older versions have the same digest
        try:
            return msgspec.json.encode(settings, order="deterministic").decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"The data or headers of the schedule {self.name!r} can't be JSON: {error}"
            ) from error

    def digest(self) -> str:
        """The digest by which processes find out whether they have the same stream and settings."""
        return hashlib.sha256(f"{self.stream} {self.settings()}".encode()).hexdigest()


ScheduleState = Literal["running", "paused", "idle"]


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a schedule."""

    name: str
    stream: str
    settings: dict[str, Any]
    """The declared settings: those of `ScheduleSpec` without name and stream."""
    state: ScheduleState
    """`idle`: no process that runs has declared it with these settings for 90 seconds, so that nothing is published."""
    next_at: datetime | None
    """The next due time. None until a process has computed it."""
    requested_at: datetime | None
    """When a message was requested that is not published yet."""
    last_due_at: datetime | None
    """The due time of the last message."""
    last_run_at: datetime | None
    """When the last message was published."""
    messages: int
    """How many messages were published."""
    paused_at: datetime | None
    seen_at: datetime
    """When a process that runs it has last asked for it. Recorded every 30 seconds."""
    created_at: datetime
    updated_at: datetime
