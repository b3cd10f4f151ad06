"""API types of streams."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from headrace.admin.validation import changed
from headrace.model.records import StreamInfo
from headrace.model.specs import StreamSpec
from headrace.model.text.names import NAME
from headrace.server.errors import invalid
from headrace.server.wire.common import ACCOUNT_ID, AccountId, given
from headrace.server.wire.settings import answer, described, renamed, request, values


@request(StreamSpec)
class StreamSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """A stream's settings. When a stream is changed, settings that are left out stay. A new
    stream gets their defaults."""


class NewStream(StreamSettings, kw_only=True, forbid_unknown_fields=True):
    """A stream to be created."""

    name: Annotated[str, described(StreamSpec, "name", pattern=f"^{NAME.pattern}$")]
    database: Annotated[
        str | None,
        Meta(
            description="Name of the further database in which it is created. By default it is the server's own.",
            extra_json_schema={"pattern": f"^{NAME.pattern}$"},
        ),
    ] = None

    def spec(self) -> StreamSpec:
        """Return the checked settings. Raises `InvalidInput` or `ConfigurationError`."""
        settings = _renamed(self, one_message_per_key=given(self).get("one_message_per_key") is True)
        del settings["database"]
        return changed(StreamSpec(name=settings.pop("name")), settings)


def changes(settings: StreamSettings, before: StreamInfo) -> dict[str, Any]:
    """Return the settings to change of a stream."""
    name = before.name
    found = _renamed(settings, one_message_per_key=before.one_message_per_key)
    if found.pop("name", name) != name:
        text = f"The name of the stream {name!r} can't be changed: make another stream, and republish to it."
        raise invalid(text, "name", "it can't be changed")
    return found


def _renamed(settings: StreamSettings, *, one_message_per_key: bool) -> dict[str, Any]:
    """Return the settings under the names of `StreamSpec`. Raises `Problem`."""
    sent = given(settings)
    found = renamed(StreamSpec, sent)
    if sent.get("process_unmodified") is False and not one_message_per_key:
        found["dedupe"] = False  # a setting of streams with one message per key, which has no effect in others
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
    account_id: AccountId = ACCOUNT_ID
    stats: StreamStats
    inserted_at: datetime
    updated_at: datetime
    database: Annotated[
        str | UnsetType, Meta(description="The further database that it lives in. Left out for the server's own.")
    ] = UNSET
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
            database=UNSET if info.database is None else info.database,
            info=info,
        )
