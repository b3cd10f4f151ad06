"""API types of streams."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from headrace.admin.validation import changed
from headrace.model.records import StreamInfo
from headrace.model.specs import StreamSpec
from headrace.server.errors import Problem
from headrace.server.wire.common import given
from headrace.server.wire.settings import answer, described, request, values


@request(StreamSpec)
class StreamSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """A stream's settings. When a stream is changed, settings that are left out stay. A new
    stream gets their defaults."""


class NewStream(StreamSettings, kw_only=True, forbid_unknown_fields=True):
    """A stream to be created."""

    name: Annotated[str, described(StreamSpec, "name")]

    def spec(self) -> StreamSpec:
        """Return the checked settings. Raises `InvalidInput` or `ConfigurationError`."""
        settings = given(self)
        return changed(StreamSpec(name=settings.pop("name")), settings)


def changes(settings: StreamSettings, name: str) -> dict[str, object]:
    """Return the settings to change of the stream `name`."""
    found = given(settings)
    if found.pop("name", name) != name:
        raise Problem(
            422,
            "invalid",
            f"The name of the stream {name!r} can't be changed: make another stream, and republish to it.",
            validation_errors={"name": ["it can't be changed"]},
        )
    return found


class StreamStats(Struct):
    """The size of a stream."""

    message_count: int
    consumer_count: int
    storage_size: Annotated[int, Meta(description="Bytes on disk.")]


@answer(StreamSpec, before="stats")
class Stream(Struct, kw_only=True):
    """A stream."""

    id: str
    stats: StreamStats
    inserted_at: datetime
    updated_at: datetime
    info: Annotated[StreamInfo, Meta(description="All that is known of it.")]

    @classmethod
    def of(cls, info: StreamInfo) -> Stream:
        """Convert a stream of the store."""
        return cls(
            id=info.id,
            **values(StreamSpec, asdict(info)),
            stats=StreamStats(info.messages, info.consumers, info.size),
            inserted_at=info.created_at,
            updated_at=info.updated_at,
            info=info,
        )
