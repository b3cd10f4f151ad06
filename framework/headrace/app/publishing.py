"""The publishing methods of an application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

from headrace.model.messages.publish_options import PublishKeywords, PublishManyKeywords
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.messages.transaction import Transaction


class Publishing:
    """The part of an `App` that publishes."""

    _publisher: Publisher

    async def publish(
        self,
        stream: str,
        key: str,
        data: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        tx: Any = None,
        **options: Unpack[PublishKeywords],
    ) -> int | None:
        """Append a message.

        Args:
            stream: an existing stream.
            key: tokens separated by dots, such as `orders.us.42`. Messages of one key are handled
                in order.
            data: anything that msgspec can write as JSON.
            headers: names and JSON values, stored with the message.
            message_id: publishing the same id again, within the stream's `dedupe_window`, changes
                nothing.
            delay: publish the message after this time. It gets its place in the stream then.
            deliver_at: publish the message at this time, instead of after a `delay`.
            expires_in: deliver the message to no consumer once this time has passed since its publication, by the
                server's clock. It stays in the stream, with the header `headrace-expires-in`.
            unique_key: don't publish while the last message of the stream that was published with the same unique
                key is pending: while a consumer is not done with it, or it is scheduled. At most 256 bytes of UTF-8. Not
                together with a `message_id`.
            unique_while: `pending`, or `waiting` to publish also while that message is in flight.
            tx: a `Transaction`, or your connection or session that is inside one, of a library that
                `headrace.drivers` supports. The message exists if that transaction commits.

        Returns:
            The message's seq. If the id was published before, the seq of the first message, and if a message of the
            unique key is pending, the seq of that one. None for a scheduled message.

        Raises:
            UnknownStream: the stream does not exist. Publishing never creates one.
            InvalidInput: a key, data, headers or a unique key that can't be stored. `InvalidKey` and
                `InvalidData` say which.
            StreamFull: the stream holds its `max_storage`, and nothing may be removed. Try again later.
            StoreUnavailable: the message may or may not have been published.
        """
        return await self._publisher.publish(stream, key, data, headers=headers, tx=tx, **options)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction of the app's database: `async with app.transaction() as tx: await app.publish(…, tx=tx)`.

        It commits at the end of the block, and rolls back if the block raises. The server ends it
        after 30 seconds without a query. At most `max_connections` minus a reserve are open at a
        time, including those of transactional handlers. Further callers wait for at most 10
        seconds.

        Raises:
            StoreUnavailable: it was not committed. If the answer to the COMMIT is lost, this is
                raised only after the outcome is known.
        """
        return self._publisher.transaction()

    async def publish_many(
        self,
        stream: str,
        messages: Iterable[tuple[Any, ...]],
        *,
        tx: Any = None,
        **options: Unpack[PublishManyKeywords],
    ) -> int:
        """Append messages in their order, all or none: (key, data) or (key, data, headers) tuples.

        Args:
            stream: the name of the stream.
            messages: the tuples.
            message_ids: an id, or None, for each message.
            unique_keys: a unique key, or None, for each message. Of several messages with one unique key, the first is
                published.
            delay, deliver_at, expires_in, unique_while, tx: as for `App.publish`.

        Returns:
            The number of messages published or scheduled. Messages with a known id or with the unique key of a pending
            message, and those that `dedupe` found unchanged, are not counted. Raises as `publish` does.
        """
        return await self._publisher.publish_many(stream, messages, tx=tx, **options)
