"""Sources, which feed a stream from outside: their common settings, their state and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

import msgspec

from headrace.model.capture import CaptureInfo
from headrace.model.errors import AlreadyExists, ConfigurationError
from headrace.model.errors import SlotRemains as SlotRemains
from headrace.model.settings import Setting, check, settings_of
from headrace.model.text.counting import count
from headrace.model.text.names import NAME, NAME_RULE

SourceExists = AlreadyExists
"""A source of that name exists already, with other settings."""


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a source of any kind."""

    name: Annotated[
        str,
        Setting(
            "1 to 48 lower-case letters, digits, `-` and `_`. It is the last segment of a webhook's URL.",
            example="github",
            fixed=True,
        ),
    ]
    stream: Annotated[str, Setting("The stream to which messages are published.", fixed=True)]

    def check(self) -> None:
        """Check the name, and the choices and limits of the other settings. Raises `ConfigurationError`."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigurationError(f"The source name {self.name!r:.80} can't be used. {NAME_RULE}")
        check(self, self.owner)

    @property
    def owner(self) -> str:
        """The owner of the settings, for errors."""
        return f"the source {self.name!r}"

    def settings(self) -> dict[str, Any]:
        """Return the settings to store, without name and stream."""
        settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        del settings["name"], settings["stream"]
        return settings

    def given(self) -> dict[str, Any]:
        """Return the settings that differ from the default."""
        defaults = self.shown({})
        return {
            name: value for name, value in self.settings().items() if name not in defaults or value != defaults[name]
        }

    @classmethod
    def shown(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings but name and stream, with defaults for those that were not stored yet.
        Nothing is checked, since secrets may be hidden.
        """
        defaults = {one.name: one.default for one in settings_of(cls).values() if not one.required}
        return {**msgspec.json.decode(msgspec.json.encode(defaults)), **settings}

    @classmethod
    def stored(cls, name: str, stream: str, settings: Mapping[str, Any]) -> Self:
        """Return the spec of the source `name`, which fills `stream`, for its stored settings."""
        return msgspec.convert({**settings, "name": name, "stream": stream}, cls)


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a source."""

    id: str
    """A UUID. The HTTP API accepts it as well as the name."""
    name: str
    kind: str
    """The kind of the source: `webhook` or `postgres`."""
    stream: str
    stream_id: str
    settings: dict[str, Any]
    """The settings of its kind, without secrets: those of `WebhookSpec` for a webhook, and those of
    `PostgresSpec` for captured tables.
    """
    created_at: datetime
    updated_at: datetime
    capture: CaptureInfo | None = None
    """The state of the capture, for a source that captures tables."""


def stream_in_use(name: str, messages: int, consumers: int, *, backfill: bool) -> str:
    """Say what it means to capture tables into a stream that has messages or consumers."""
    gets = "every change of the captured tables" + (", and first all their rows," if backfill else "")
    return (
        f"The stream {name!r} exists, with {count(messages, 'message')} and"
        f" {count(consumers, 'consumer')}. It would get {gets} and deliver them to its consumers."
    )
