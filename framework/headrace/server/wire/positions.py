"""API types of a consumer's position: seek."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.server.errors import invalid


class Seek(Struct, kw_only=True, forbid_unknown_fields=True):
    """The position to move a consumer to."""

    to: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 2**63 - 1})] | str,
        Meta(description='A seq, a time, "start" or "end".', examples=["start", 4711, "2030-01-31T12:00:00Z"]),
    ]

    dry_run: Annotated[bool, Meta(description="Only report what the seek would do.")] = False

    def target(self) -> int | datetime | str:
        """Return the position as `Admin.seek` takes it. Raises a `Problem` for any other value."""
        if isinstance(self.to, int) or self.to in ("start", "end"):
            return self.to
        try:
            return int(self.to) if self.to.isdecimal() and len(self.to) < 20 else datetime.fromisoformat(self.to)
        except ValueError:
            text = f"Can't seek to {self.to!r}: give a seq, a time such as '2030-01-31T12:00:00Z', 'start' or 'end'."
            raise invalid(text, "to", "a seq, a time in ISO 8601, 'start' or 'end'") from None


class Position(Struct, kw_only=True, rename={"before": "from", "after": "to"}):
    """The position of a consumer after a seek. With `dry_run`, all that a seek would do instead."""

    position: Annotated[int | UnsetType, Meta(description="The next message has a seq above it.")] = UNSET
    before: Annotated[int | UnsetType, Meta(description="The position now.")] = UNSET
    after: Annotated[int | UnsetType, Meta(description="The position that it would have.")] = UNSET
    again: Annotated[
        int | UnsetType,
        Meta(
            description="Messages up to the current position that would be redelivered, including those in flight and parked."
        ),
    ] = UNSET
    again_exact: Annotated[bool | UnsetType, Meta(description="Whether `again` is counted, and not estimated.")] = UNSET
    skipped: Annotated[
        int | UnsetType, Meta(description="Messages that wait, and would not be delivered any more.")
    ] = UNSET
    skipped_exact: Annotated[
        bool | UnsetType, Meta(description="Whether `skipped` is counted, and no open transaction may publish there.")
    ] = UNSET
    in_flight: Annotated[int | UnsetType, Meta(description="Messages in flight in leases that would end.")] = UNSET


class PositionAnswer(Struct):
    """The position of a consumer, or what a seek would do."""

    data: Position
