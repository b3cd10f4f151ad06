"""List push consumers."""

from __future__ import annotations

import msgspec

from headrace.store.database.database import Executor


class PushConsumer(msgspec.Struct, frozen=True):
    """A consumer with a push endpoint, to which servers send its messages.

    `number` and `stream_number` are those of the database, `id` and `stream_id` those of the API. `version`
    is the version of its settings, and rises when they change.
    """

    number: int
    version: int
    id: str
    stream_number: int
    stream_id: str


async def push_consumers(executor: Executor) -> list[PushConsumer]:
    """All push consumers of the database. Without settings, because this is called often. See `consumer_spec`."""
    rows = await executor.fetch(
        """select c.id, c.version, c.uid::text, s.id, s.uid::text
           from headrace_internal.consumers c join headrace_internal.streams s on s.id = c.stream_id where c.push is not null"""
    )
    return [PushConsumer(*row) for row in rows]
