"""All there is at a glance, cheap enough to be asked for every second."""

from __future__ import annotations

from headrace import store
from headrace.app.admin.base import Base
from headrace.model.records import Overview


class AtAGlance(Base):
    """The call of who looks on."""

    async def overview(self) -> Overview:
        """All streams, consumers, sources with the backfills that wait or are under way, and processes at work.

        Four queries, whatever there is. No message is judged by a condition, so `num_pending` of a consumer counts only what is parked or
        replayed; go by its `lag`.
        """
        streams = await store.streams(self._database)
        consumers = await store.consumers(self._database, look=0)
        sources, backfills = await store.sources_at_work(self._database)
        at, workers = await store.workers(self._database)
        return Overview(
            streams=streams, consumers=consumers, sources=sources, backfills=backfills, workers=workers, at=at
        )
