"""API types of streams."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.admin.validation import changed
from headrace.model.records import StreamInfo
from headrace.model.specs import StreamSpec
from headrace.server.errors import Problem
from headrace.server.wire.common import given

_Duration = Annotated[
    float | str | UnsetType | None, Meta(description='Seconds, or text such as "30d".', examples=["30d"])
]


class StreamSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """A stream's settings. When a stream is changed, settings that are left out stay. A new
    stream gets their defaults."""

    name: Annotated[
        str | UnsetType,
        Meta(
            description="1 to 48 lower-case letters, digits, `-` and `_`. It can't be changed.", examples=["mystream"]
        ),
    ] = UNSET
    retention: Annotated[
        Literal["limits", "interest"] | UnsetType,
        Meta(description="`limits`: the ones below; `interest`: a message stays until every consumer is done with it."),
    ] = UNSET
    retain_up_to: _Duration = UNSET
    retain_at_least: _Duration = UNSET
    max_storage: Annotated[
        int | UnsetType | None, Meta(description="Bytes on disk, beyond which the oldest messages are removed.")
    ] = UNSET
    one_message_per_key: Annotated[
        bool | UnsetType, Meta(description="A new message takes the place of the one before it with the same key.")
    ] = UNSET
    dedupe: Annotated[bool | UnsetType, Meta(description="An unchanged payload of a key is not published again.")] = (
        UNSET
    )
    tombstones: Annotated[bool | UnsetType, Meta(description="A null payload deletes its key.")] = UNSET
    dedupe_window: Annotated[
        float | str | UnsetType, Meta(description="How long message ids are remembered; seconds, or text.")
    ] = UNSET


class NewStream(StreamSettings, kw_only=True, forbid_unknown_fields=True):
    """A stream to be created."""

    name: Annotated[str, Meta(description="1 to 48 lower-case letters, digits, `-` and `_`.", examples=["mystream"])]

    def spec(self) -> StreamSpec:
        """Return the checked settings. Raises `InvalidInput` or `ConfigurationError`."""
        settings = given(self)
        return changed(StreamSpec(name=settings.pop("name")), settings, fixed=("name",))


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


class Stream(Struct, kw_only=True):
    """A stream."""

    id: str
    name: str
    retention: str
    retain_up_to: Annotated[float | None, Meta(description="Seconds.")]
    retain_at_least: Annotated[float | None, Meta(description="Seconds.")]
    max_storage: int | None
    one_message_per_key: bool
    dedupe: bool
    tombstones: bool
    dedupe_window: Annotated[float, Meta(description="Seconds.")]
    stats: StreamStats
    inserted_at: datetime
    updated_at: datetime
    info: Annotated[StreamInfo, Meta(description="All that is known of it.")]

    @classmethod
    def of(cls, info: StreamInfo) -> Stream:
        """Convert a stream of the store."""
        return cls(
            id=info.id,
            **{setting: getattr(info, setting) for setting in StreamSpec.__struct_fields__},
            stats=StreamStats(info.messages, info.consumers, info.size),
            inserted_at=info.created_at,
            updated_at=info.updated_at,
            info=info,
        )
