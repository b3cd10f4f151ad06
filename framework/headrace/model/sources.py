"""What there is to know about a source: where messages come from that nobody publishes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from headrace.model.capture import CaptureInfo
from headrace.model.errors import InUse, InvalidInput


class SourceExists(InvalidInput):
    """There is a source of that name already, with other settings."""


class SlotRemains(InUse):
    """A source is not removed, since what it has at the database that it captures can't be dropped."""


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a source is."""

    id: str
    """A UUID, by which the HTTP API knows it as well as by its name."""
    name: str
    kind: str
    """What it is: `webhook`, or `postgres`."""
    stream: str
    stream_id: str
    settings: dict[str, Any]
    """As its kind has them: for a webhook those of `WebhookSpec`, for a table those of `PostgresSpec`. Secrets are not told."""
    created_at: datetime
    updated_at: datetime
    capture: CaptureInfo | None = None
    """How it goes, of a source that captures tables."""
