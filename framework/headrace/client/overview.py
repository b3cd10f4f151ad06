"""All there is in a server's database, at a glance."""

from __future__ import annotations

import msgspec

from headrace.client.base import Base
from headrace.client.request import get
from headrace.model.records import Overview


class _Told(msgspec.Struct):
    data: Overview


class AtAGlance(Base):
    """The call of who looks on; see `headrace.app.admin`."""

    async def overview(self) -> Overview:
        """All streams, consumers, sources with the backfills that wait or are under way, and processes at work."""
        return (await self._ask(get("overview"), _Told)).data
