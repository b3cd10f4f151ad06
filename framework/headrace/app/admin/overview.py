"""All there is at a glance, cheap enough to be asked for every second."""

from __future__ import annotations

from headrace import store
from headrace.app.admin.base import Base
from headrace.model.records import Overview


class AtAGlance(Base):
    """The call of who looks on."""

    async def overview(self) -> Overview:
        """All streams, consumers, and processes at work.

        Three queries, whatever there is. No message is judged by a condition, so `num_pending` of a consumer counts only what is parked or
        replayed; go by its `lag`.
        """
        streams = await store.streams(self._database)
        consumers = await store.consumers(self._database, look=0)
        at, workers = await store.workers(self._database)
        return Overview(streams=streams, consumers=consumers, workers=workers, at=at)
