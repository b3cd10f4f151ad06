"""Publishing, as an application does it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

from headrace.model.durations import Duration
from headrace.runtime.publisher import Publisher
from headrace.runtime.transaction import Transaction


class Publishing:
    """The part of an `App` that publishes."""

    _publisher: Publisher

    async def publish(
        self, stream: str, key: str, data: Any, *, headers: Mapping[str, Any] | None = None,
        message_id: str | None = None, delay: Duration | None = None, deliver_at: datetime | None = None,
        tx: Any = None,
    ) -> int | None:  # fmt: skip
        """Append a message.

        Args:
            stream: an existing stream.
            key: tokens parted by dots, such as `orders.us.42`. Messages of one key are handled in order.
            data: anything that msgspec can write as JSON.
            headers: names and JSON values that travel along.
            message_id: publishing the same id again, within the stream's `dedupe_window`, changes nothing.
            delay: publish it after so long; or, with `deliver_at`, at a time. It has its place in the stream from then on.
            tx: a `Transaction`, or a connection or session of yours that is inside one, as `headrace.drivers` knows them: the message
                is there if that commits.

        Returns:
            The message's seq: of the first time if it was published before; None if it is for later.

        Raises:
            UnknownStream: there is none of that name; publishing creates nothing.
            InvalidInput: a key, data or headers that can't be stored; `InvalidKey` and `InvalidData` say which.
            StreamFull: the stream holds its `max_storage`, and nothing may go; try again later.
            StoreUnavailable: it may or may not have been published.
        """
        return await self._publisher.publish(
            stream, key, data, headers=headers, message_id=message_id, delay=delay, deliver_at=deliver_at, tx=tx
        )

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction of the app's database: `async with app.transaction() as tx: await app.publish(…, tx=tx)`.

        It is committed at the end of the block, and rolled back when an exception passes. The server ends it when nothing is asked of it
        for 30 seconds. No more than `max_connections` less a
        reserve are open at a time, those of transactional handlers included; who comes then waits for his turn, 10 seconds at most.

        Raises:
            StoreUnavailable: it was not committed. When the answer to the COMMIT is lost, this is said only once it is known.
        """
        return self._publisher.transaction()

    async def publish_many(
        self, stream: str, messages: Iterable[tuple[Any, ...]], *, message_ids: Sequence[str | None] | None = None,
        delay: Duration | None = None, deliver_at: datetime | None = None, tx: Any = None,
    ) -> int:  # fmt: skip
        """Append messages in their order, all or none: (key, data) or (key, data, headers) tuples.

        Args:
            message_ids: an id, or None, for each; see `publish`, for the rest too.

        Returns:
            How many were published, or are for later: without those whose id is known, and those that `dedupe` found unchanged.
            Raises as `publish` does.
        """
        return await self._publisher.publish_many(
            stream, messages, message_ids=message_ids, delay=delay, deliver_at=deliver_at, tx=tx
        )
