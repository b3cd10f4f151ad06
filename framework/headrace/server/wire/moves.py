"""Where a consumer goes: seek, replay, pause."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from headrace.server.errors import Problem


class Seek(Struct, kw_only=True, forbid_unknown_fields=True):
    """Where to move a consumer."""

    to: Annotated[
        int | str,
        Meta(description='A seq, a time, "start" or "end".', examples=["start", 4711, "2030-01-31T12:00:00Z"]),
    ]

    def place(self) -> int | datetime | str:
        """As `Admin.seek` takes it. Raises a `Problem` for what is none of these."""
        if isinstance(self.to, int) or self.to in ("start", "end"):
            return self.to
        try:
            return int(self.to) if self.to.isdecimal() and len(self.to) < 20 else datetime.fromisoformat(self.to)
        except ValueError:
            raise Problem(
                422,
                "invalid",
                f"Can't seek to {self.to!r}: give a seq, a time such as '2030-01-31T12:00:00Z', 'start' or 'end'.",
                validation_errors={"to": ["a seq, a time in ISO 8601, 'start' or 'end'"]},
            ) from None


class Position(Struct):
    """Where a consumer is: the next message is above it."""

    position: int


class PositionAnswer(Struct):
    """Where a consumer is."""

    data: Position


class Replayed(Struct):
    """How many messages will be delivered again."""

    replayed: int


class ReplayedAnswer(Struct):
    """How many messages will be delivered again."""

    data: Replayed


class Pause(Struct, kw_only=True, forbid_unknown_fields=True):
    """For how long a consumer gets nothing more."""

    until: Annotated[datetime | None, Meta(description="Null: until somebody resumes it.")] = None
