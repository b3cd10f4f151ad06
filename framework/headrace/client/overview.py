"""Overview of a server's database."""

from __future__ import annotations

import msgspec

from headrace.client.base import Base
from headrace.client.request import get
from headrace.model.records import Overview


class _Told(msgspec.Struct):
    data: Overview


class OverviewCalls(Base):
    """The overview call. See `headrace.admin`."""

    async def overview(self) -> Overview:
        """Return all streams, consumers and sources, the waiting and running backfills, and the
        active processes."""
        return (await self._ask(get("overview"), _Told)).data
