"""Push consumers: which there are."""

from __future__ import annotations

import msgspec

from headrace.store.database import Executor


class PushConsumer(msgspec.Struct, frozen=True):
    """A consumer whose messages servers send out.

    `number` and `stream_number` are the database's, `id` and `stream_id` the API's. `version` is that of its settings, and rises when
    they change.
    """

    number: int
    version: int
    id: str
    stream_number: int
    stream_id: str


async def push_consumers(executor: Executor) -> list[PushConsumer]:
    """All push consumers of the database. It is asked often, so it brings no settings: see `consumer_spec`."""
    rows = await executor.fetch(
        """select c.id, c.version, c.uid::text, s.id, s.uid::text
           from headrace.consumers c join headrace.streams s on s.id = c.stream_id where c.push is not null"""
    )
    return [PushConsumer(*row) for row in rows]
