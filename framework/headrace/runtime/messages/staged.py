"""Messages that other processes have staged in the database, to be published with the acks of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec

from headrace import store
from headrace.model.errors import HeadraceError
from headrace.model.log import Log
from headrace.store.database.errors import translated

if TYPE_CHECKING:
    from headrace.runtime.messages.transaction import Transaction

log = Log("headrace.runtime")

DISCARD_TIMEOUT = 5.0
"""Seconds within which staged rows are deleted after a failure. Otherwise the janitor does so within a day."""


class StagedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The value that an adapter's batch handler with `publishes` may return instead of the messages themselves.

    Attributes:
        stream: the name of the stream.
        write: the id of the write that they are staged for. Each call of a handler needs another one.
        parts: a JSON list of what was staged, in the order in which it is published, with `partition`, `attempt` and
            `rows`. See `store/sql/functions/messages/writes.sql`.
    """

    stream: str
    write: str
    parts: str

    async def publish(self, transaction: Transaction) -> None:
        """Publish them when the transaction commits.

        Raises:
            StagedRowsGone: some are not there any more, as after a crash of the server.
            StreamFull, StoreUnavailable: as for other messages.
        """
        with translated("the given connection"):
            await store.publish_staged(transaction.connection, self.stream, self.write, self.parts)
        transaction.published.append((self.stream, None))

    async def discard(self, database: store.Database) -> None:
        """Delete them, unless they were published. If the database fails, that is only logged."""
        with anyio.move_on_after(DISCARD_TIMEOUT, shield=True):
            try:
                await store.discard_staged(database, self.stream, self.write)
            except HeadraceError as error:
                stream, write, hint = self.stream, self.write, "they are deleted within a day"
                log.warning("staged rows not deleted", stream=stream, write=write, error=error, hint=hint)
