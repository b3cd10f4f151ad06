"""The state of a source, which feeds a stream from outside, and the errors of sources."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from headrace.model.capture import CaptureInfo
from headrace.model.errors import InUse, InvalidInput


class SourceExists(InvalidInput):
    """A source of that name exists already, with other settings."""


class SlotRemains(InUse):
    """The source can't be removed, because its replication slot or publication at the captured database can't
    be dropped.
    """


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
