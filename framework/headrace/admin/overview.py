"""An overview of everything, cheap enough to query every second."""

from __future__ import annotations

from headrace import store
from headrace.admin.base import Base
from headrace.model.records import Overview


class OverviewCalls(Base):
    """The overview call, for monitoring."""

    async def overview(self) -> Overview:
        """All streams, consumers, sources with their waiting or running backfills, and running processes.

        It always takes four queries. It evaluates no condition, so `num_pending` of a consumer
        counts only parked and replayed messages. Use its `lag`.
        """
        streams = await store.streams(self._database)
        consumers = await store.consumers(self._database, look=0)
        sources, backfills = await store.sources_at_work(self._database)
        at, workers = await store.workers(self._database)
        return Overview(
            streams=streams, consumers=consumers, sources=sources, backfills=backfills, workers=workers, at=at
        )
