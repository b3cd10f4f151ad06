"""Publishing for operators and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import utc
from headrace.model.errors import InDoubt, StoreFull, StoreUnavailable
from headrace.model.keys import check_key


class PublishCalls(Base):
    """The calls that publish. Data and headers are JSON text, which is stored unchanged."""

    async def send(
        self, stream: str, key: str, data: str, headers: str | None = None, *,
        message_id: str | None = None, deliver_at: datetime | None = None,
    ) -> int | None:  # fmt: skip
        """Publish one message.

        Args:
            message_id: publishing the same id again, within the stream's `dedupe_window`, changes
                nothing.
            deliver_at: publish it at this time.

        Returns:
            Its seq. If the id was published before, the seq of the first message. None for a
            scheduled message, or over HTTP, which doesn't return it.
        """
        return await store.publish(
            self._database, stream, check_key(key), data, headers, message_id=message_id, deliver_at=utc(deliver_at)
        )

    async def send_many(
        self, stream: str, keys: Sequence[str], data: Sequence[str], headers: Sequence[str | None]
    ) -> int:
        """Publish messages in their order, all or none. The lists run in parallel.

        Returns:
            How many were published. Messages that `dedupe` found unchanged are not counted.

        Raises:
            InDoubt: it is not known whether they were published.
        """
        committing = False
        try:
            async with self._database.transaction() as connection:
                published = await store.publish_many(connection, stream, keys, data, headers)
                committing = True
        except StoreFull:
            raise
        except StoreUnavailable as error:
            if not committing:
                raise
            raise InDoubt(f"{error} The connection broke at their commit.") from error
        return published
