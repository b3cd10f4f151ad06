"""A typed stream, made by `app.stream("orders", Order)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from headrace.app.streams.signatures import (
    BatchOptions,
    ConsumerOptions,
    Handles,
    HandlesInTransaction,
    Off,
    On,
    OneOutgoing,
    Publishes,
    PublishesInTransaction,
    SizedOptions,
)
from headrace.model.messages.publish_options import PublishKeywords, PublishManyKeywords
from headrace.model.records import DeadLetter, StoredMessage
from headrace.runtime.formats.format import StreamFormat
from headrace.runtime.formats.upcasting import U as Upcast
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.publisher import Publisher

T = TypeVar("T")
U = TypeVar("U")


class Home(Protocol):
    """The app or router on which a stream is declared."""

    @property
    def consumer(self) -> Callable[..., Callable[..., Any]]: ...
    def _check_open(self) -> None: ...
    def _publishes(self, stream: str) -> Publisher: ...


class Stream(Generic[T]):
    """A stream whose messages carry values of one type.

        orders = app.stream("orders", Order)

        @orders.consumer(filter="orders.us.>")
        async def ship(order: Order) -> None: ...

        await orders.publish(order, key="orders.us.42")

    Attributes:
        name: the name of the stream.
        type: the type of its payloads.
    """

    def __init__(self, home: Home, stored_as: StreamFormat) -> None:
        self._home = home
        self._stored_as = stored_as
        self.name = stored_as.stream
        self.type = stored_as.type

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {getattr(self.type, '__name__', self.type)})"

    async def publish(
        self,
        data: T,
        *,
        key: str,
        headers: Mapping[str, Any] | None = None,
        tx: Any = None,
        **options: Unpack[PublishKeywords],
    ) -> int | None:
        """Append a message. For the arguments, the result and the errors, see `App.publish`.

        A stream of a router publishes through the app that includes it.

        Args:
            data: a value of the stream's type. Another one raises `InvalidData`.
            key: tokens separated by dots, such as `orders.us.42`.

        Raises:
            ConfigurationError: no app includes the router, or several apps that are connected do.
        """
        return await self._home._publishes(self.name).publish(self.name, key, data, headers=headers, tx=tx, **options)

    async def publish_many(
        self, messages: Iterable[OneOutgoing[T]], *, tx: Any = None, **options: Unpack[PublishManyKeywords]
    ) -> int:
        """Append (key, data) or (key, data, headers) tuples in their order, all or none. See `App.publish_many`."""
        return await self._home._publishes(self.name).publish_many(self.name, messages, tx=tx, **options)

    def decoded(self, message: StoredMessage | DeadLetter) -> T:
        """Decode the data of a stored message, such as one of `admin.messages` or a dead letter, into the stream's type.

        Raises:
            UnreadablePayload: this process doesn't know the version, the codec or the key.
            Reject: the payload can never be read.
            msgspec.ValidationError: the data doesn't fit the type.
        """
        return cast(T, self._stored_as.decoded(message.key, message.data, message.headers))

    def upcaster(self, *, from_version: int) -> Callable[[Upcast], Upcast]:
        """Make a plain function bring the data of one version to the next: `def named(data: dict) -> dict`.

        The present version is the one after the last upcaster. It is stored in the header `headrace-version` of what
        the app publishes. A message without this header has version 1. Its data passes all upcasters, in the order of
        versions, before it is decoded.

        Args:
            from_version: the version of the data that the function takes. It gets plain values of JSON.

        Returns:
            A decorator, which returns the function. Raises `ConfigurationError` if a version has two upcasters.
        """

        def register(function: Upcast) -> Upcast:
            self._home._check_open()
            return self._stored_as.upcasters.add(from_version, function)

        return register

    @overload
    def consumer(
        self, *, batch: int, transactional: On, publishes: Stream[U], **settings: Unpack[SizedOptions]
    ) -> PublishesInTransaction[list[T], Batch, U]: ...
    @overload
    def consumer(
        self, *, batch: int, transactional: On, publishes: str | None = ..., **settings: Unpack[SizedOptions]
    ) -> HandlesInTransaction[list[T], Batch]: ...
    @overload
    def consumer(
        self, *, batch: int, publishes: Stream[U], transactional: Off = ..., **settings: Unpack[SizedOptions]
    ) -> Publishes[list[T], Batch, U]: ...
    @overload
    def consumer(
        self, *, batch: int, publishes: str | None = ..., transactional: Off = ..., **settings: Unpack[SizedOptions]
    ) -> Handles[list[T], Batch]: ...
    @overload
    def consumer(
        self, *, group_by_key: On, transactional: On, publishes: Stream[U], **settings: Unpack[BatchOptions]
    ) -> PublishesInTransaction[list[T], Batch, U]: ...
    @overload
    def consumer(
        self, *, group_by_key: On, transactional: On, publishes: str | None = ..., **settings: Unpack[BatchOptions]
    ) -> HandlesInTransaction[list[T], Batch]: ...
    @overload
    def consumer(
        self, *, group_by_key: On, publishes: Stream[U], transactional: Off = ..., **settings: Unpack[BatchOptions]
    ) -> Publishes[list[T], Batch, U]: ...
    @overload
    def consumer(
        self,
        *,
        group_by_key: On,
        publishes: str | None = ...,
        transactional: Off = ...,
        **settings: Unpack[BatchOptions],
    ) -> Handles[list[T], Batch]: ...
    @overload
    def consumer(
        self, *, transactional: On, publishes: Stream[U], **settings: Unpack[ConsumerOptions]
    ) -> PublishesInTransaction[T, Message, U]: ...
    @overload
    def consumer(
        self, *, transactional: On, publishes: str | None = ..., **settings: Unpack[ConsumerOptions]
    ) -> HandlesInTransaction[T, Message]: ...
    @overload
    def consumer(
        self, *, publishes: Stream[U], transactional: Off = ..., **settings: Unpack[ConsumerOptions]
    ) -> Publishes[T, Message, U]: ...
    @overload
    def consumer(
        self, *, publishes: str | None = ..., transactional: Off = ..., **settings: Unpack[ConsumerOptions]
    ) -> Handles[T, Message]: ...

    def consumer(self, **settings: Any) -> Any:
        """Make a function the handler of a consumer of this stream. For the settings, see `App.consumer`.

        Type checkers check the first parameter of the handler and what it returns. With `publishes` a typed stream,
        the handler returns messages of that stream's type. Payloads are decoded into the stream's type, also if the
        parameter has no annotation.

        Returns:
            A decorator, which returns the function.

        Raises:
            ConfigurationError: an invalid setting, a name that is taken, or a handler that doesn't take
                what the stream carries.
            InvalidFilter: a filter that breaks the grammar.
        """
        return self._home.consumer(self, **settings)


def name_of_stream(stream: Any) -> Any:
    """Return the name of a typed stream, and everything else unchanged."""
    return stream.name if isinstance(stream, Stream) else stream
