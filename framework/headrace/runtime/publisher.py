"""The publisher: appends messages for the app and its handlers, and wakes the consumers of this process that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from headrace import store
from headrace.model import payloads
from headrace.model.durations import Duration, when
from headrace.model.errors import InvalidInput
from headrace.model.keys import check_key
from headrace.runtime.instruments import Instruments, Sending, Untold
from headrace.store.translate import translated


class Publisher:
    """Publishes.

    Args:
        database: the open database, asked for at each call.
        published: told the stream, and when it is for later the time.
        date: the time of day, from which a delay counts.

    Attributes:
        instruments: telemetry, or None when it is off.
    """

    def __init__(
        self,
        database: Callable[[], store.Database],
        published: Callable[[str, datetime | None], None],
        date: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._published = published
        self._date = date
        self.instruments: Instruments | None = None

    async def publish(
        self, stream: str, key: str, data: Any, *, headers: Mapping[str, Any] | None = None,
        message_id: str | None = None, delay: Duration | None = None, deliver_at: datetime | None = None,
        tx: store.Executor | None = None,
    ) -> int | None:  # fmt: skip
        """See `App.publish`."""
        due = when(delay, deliver_at, self._date())
        text, header_text = payloads.encode(data), payloads.encode_headers(headers)
        check_key(key)
        with self._told(stream, [header_text]) as sending, self._translated(tx):
            seq = sending.seq = await store.publish(
                tx or self._database(), stream, key, text, sending.headers[0], message_id=message_id, deliver_at=due
            )
        self._published(stream, due)
        return seq

    async def publish_many(
        self, stream: str, messages: Iterable[tuple[Any, ...]], *, message_ids: Sequence[str | None] | None = None,
        delay: Duration | None = None, deliver_at: datetime | None = None, tx: store.Executor | None = None,
    ) -> int:  # fmt: skip
        """See `App.publish_many`."""
        due = when(delay, deliver_at, self._date())
        keys, data, headers = payloads.parallel(messages)
        if message_ids is not None and len(message_ids) != len(keys):
            raise InvalidInput(
                f"There are {len(keys)} messages and {len(message_ids)} message_ids: give one, or None, for each."
            )
        more: dict[str, Any] = {"message_ids": message_ids, "deliver_at": None if due is None else [due] * len(keys)}
        try:
            with self._told(stream, headers) as sending, self._translated(tx):
                if tx is not None:
                    count = await store.publish_many(tx, stream, keys, data, sending.headers, **more)
                else:
                    count = await store.publish_all(self._database(), stream, keys, data, sending.headers, **more)
        except InvalidInput:
            for key in keys:  # the store can't say which one it was
                check_key(key)
            raise
        self._published(stream, due)
        return count

    def _told(self, stream: str, headers: Sequence[str | None]) -> AbstractContextManager[Sending]:
        return (
            nullcontext(Untold(headers)) if self.instruments is None else self.instruments.publishing(stream, headers)
        )

    def _translated(self, tx: store.Executor | None) -> AbstractContextManager[None]:
        """Errors of a user's own connection are as our own's. It need not be to this app's database, nor the app connected."""
        return nullcontext() if tx is None else translated("the given connection")
