"""API types of capturing sources, their backfills, and changes that could not be made into messages."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.model.capture import CaptureInfo
from headrace.model.conditions.selections import WhereJson as Where
from headrace.model.sources import SourceInfo
from headrace.server.wire.settings import answer, request
from headrace.sources.postgres.settings import MOST_COLUMNS
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.table_names import MAX_NAME

_Table = Annotated[str, Meta(extra_json_schema={"minLength": 3, "maxLength": MAX_NAME})]


@request(PostgresSpec, omit=("name", "stream", "key"))
class CaptureSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings of a source that captures tables."""

    where: Where | UnsetType | None = UNSET
    rate: Annotated[int, Meta(ge=1, lt=2**31)] | UnsetType | None = UNSET
    heartbeat: float | UnsetType | None = UNSET
    verify_every: float | UnsetType | None = UNSET
    tables: list[_Table] | UnsetType = UNSET
    columns: (
        dict[str, Annotated[list[str], Meta(extra_json_schema={"minItems": 1, "maxItems": MOST_COLUMNS})]] | UnsetType
    ) = UNSET


@answer(PostgresSpec, before="state", omit=("name", "stream"))
class PostgresSource(Struct, kw_only=True):
    """A source that captures tables."""

    id: str
    name: str
    kind: str
    stream: str
    stream_id: str
    replication_slot: Annotated[str, Meta(description="The name of its slot at the captured server.")]
    state: Annotated[str, Meta(description="How it goes.", examples=["running"])]
    reason: Annotated[str | None, Meta(description="The cause of its waiting, or the reason why it can't continue.")]
    mend: Annotated[str | None, Meta(description="The statement or command that fixes it.")]
    capture: Annotated[CaptureInfo, Meta(description="All of how it goes.")]
    inserted_at: datetime
    updated_at: datetime
    info: Annotated[SourceInfo, Meta(description="All that is known of it.")]

    @classmethod
    def of(cls, info: SourceInfo) -> PostgresSource:
        """Convert a source of the store, without its secrets."""
        from headrace.sources.postgres.database.slots import slot_name

        capture = info.capture or CaptureInfo(state="new")
        shared = info.settings.get("shared_slot")
        own = (info.name, info.id) if shared is None else (shared, capture.shared_slot_id or "")
        slot = info.settings.get("slot") or slot_name(*own)
        same = {name: getattr(info, name) for name in ("id", "name", "kind", "stream", "stream_id", "updated_at")}
        return cls(
            replication_slot=slot,
            state=capture.state,
            reason=capture.reason,
            mend=capture.mend,
            capture=capture,
            inserted_at=info.created_at,
            info=info,
            **same,
            **PostgresSpec.shown(info.settings),
        )


class DeletedSource(Struct, kw_only=True):
    """The source that was deleted."""

    id: str
    deleted: bool = True
    left: Annotated[
        str | UnsetType,
        Meta(description="With `force`: the slot and publication that were left behind in the captured database."),
    ] = UNSET
