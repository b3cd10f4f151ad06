"""The state of a schedule."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

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
