"""The publisher: appends messages for the app and its handlers, and wakes waiting consumers of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Protocol, Unpack

from headrace import drivers, store
from headrace.model.errors import InvalidInput, NotConnected
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.messages.publish_options import PublishKeywords, PublishManyKeywords, PublishOptions, due
from headrace.runtime.instruments import Instruments, NoInstruments, Sending
from headrace.runtime.messages.transaction import Transaction, transaction
from headrace.store.database.errors import translated


class Format(Protocol):
    """How payloads of a stream are stored. See `headrace.runtime.formats.format`."""

    def outgoing(
        self, key: str, data: Any, headers: Mapping[str, Any] | None
    ) -> tuple[Any, Mapping[str, Any] | None]: ...
    def outgoing_many(self, messages: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]: ...


class Publisher:
    """Publishes messages to streams.

    Args:
        database: returns the open database, and is called for each publish.
        committed: called with the stream, and with the delivery time of scheduled messages or None.
            This is after the commit, or after the publish if it is in a transaction on your own
            connection.
        date: returns the current time, from which a delay counts.
        formats: how payloads are stored, by stream. Of other streams they are stored as JSON.

    Attributes:
        committed: as given.
        instruments: telemetry, or None when it is off.
    """

    def __init__(
        self,
        database: Callable[[], store.Database],
        committed: Callable[[str, datetime | None], None],
        date: Callable[[], datetime],
        formats: Mapping[str, Format] | None = None,
    ) -> None:
        self._database = database
        self.committed = committed
        self._date = date
        self._formats = {} if formats is None else formats
        self.instruments: Instruments | None = None

    @property
    def open(self) -> bool:
        """Whether it is connected to a database."""
        try:
            self._database()
        except NotConnected:
            return False
        return True

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """See `App.transaction`."""
        return transaction(self._database(), self)

    async def publish(
        self,
        stream: str,
        key: str,
        data: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        tx: Any = None,
        **keywords: Unpack[PublishKeywords],
    ) -> int | None:
        """See `App.publish`."""
        options = PublishOptions.of(self._date(), **keywords)
        text, header_text = self.stored(stream, key, data, headers)
        check_key(key)
        with self._span(stream, [header_text]) as sending, self._translated(tx):
            where = self._database() if tx is None else drivers.executor(tx)
            seq = sending.seq = await store.publish(where, stream, key, text, sending.headers[0], options)
        self._notify(stream, options.deliver_at, tx)
        return seq

    def stored(self, stream: str, key: str, data: Any, headers: Mapping[str, Any] | None) -> tuple[str, str | None]:
        """Return the JSON of the data and of the headers, as a stream stores them. Raises `InvalidInput`."""
        if (stored_as := self._formats.get(stream)) is not None:
            data, headers = stored_as.outgoing(key, data, headers)
        return payloads.encode(data), payloads.encode_headers(headers)

    async def publish_many(
        self,
        stream: str,
        messages: Iterable[tuple[Any, ...]],
        *,
        tx: Any = None,
        **keywords: Unpack[PublishManyKeywords],
    ) -> int:
        """See `App.publish_many`."""
        if (stored_as := self._formats.get(stream)) is not None:
            messages = stored_as.outgoing_many(messages)
        keys, data, headers = payloads.parallel(messages)
        options = PublishOptions.of_many(len(keys), self._date(), **keywords)
        try:
            with self._span(stream, headers) as sending, self._translated(tx):
                if tx is not None:
                    where = drivers.executor(tx)
                    count = await store.publish_many(where, stream, keys, data, sending.headers, options)
                else:
                    count = await store.publish_all(self._database(), stream, keys, data, sending.headers, options)
        except InvalidInput:
            for key in keys:  # the store doesn't report which key was invalid
                check_key(key)
            raise
        self._notify(stream, due(options), tx)
        return count

    def _notify(self, stream: str, deliver_at: datetime | None, tx: Any) -> None:
        if isinstance(tx, Transaction):
            tx.published.append((stream, deliver_at))
        else:  # Your own commit comes later and unseen. Looking too early costs little, and the poll finds it
            self.committed(stream, deliver_at)

    def _span(self, stream: str, headers: Sequence[str | None]) -> AbstractContextManager[Sending]:
        return (
            nullcontext(NoInstruments(headers))
            if self.instruments is None
            else self.instruments.publishing(stream, headers)
        )

    def _translated(self, tx: Any) -> AbstractContextManager[None]:
        """Translate the errors of your own connection like those of the app's connection.

        Your connection need not be to the app's database, and the app need not be connected.
        """
        return nullcontext() if tx is None else translated("the given connection")
