"""The types of handlers on a typed stream, for type checkers. Nothing here runs.

A type checker looks at the first parameter of a handler: the payload, the message or batch, or the transaction. The
rest, such as dependencies, is checked when the handler is declared.

    X  the payload: `Order`, or `list[Order]` for batches
    D  the delivery: `Message` or `Batch`
    U  the type of the stream that the handler publishes to
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, overload

from headrace.model.conditions import Condition
from headrace.model.durations import Duration
from headrace.model.handling import Breaker, OnBatchError, Runner
from headrace.model.outcomes import Reject, Retry
from headrace.model.specs import Backoff, DeliverPolicy, OnExhausted, Retention
from headrace.runtime.formats.codec import Codec
from headrace.runtime.handlers.middleware import Middleware
from headrace.runtime.messages.transaction import Transaction

X = TypeVar("X")
D = TypeVar("D")
U = TypeVar("U")
U_contra = TypeVar("U_contra", contravariant=True)
V = TypeVar("V")
P = ParamSpec("P")

OneOutgoing: TypeAlias = tuple[str, U] | tuple[str, U, Mapping[str, Any]]
"""A message to publish: (key, data) or (key, data, headers)."""

On: TypeAlias = Literal[True]
Off: TypeAlias = Literal[False]

Outgoing: TypeAlias = OneOutgoing[U] | Sequence[OneOutgoing[U]] | Retry | Reject | None
"""The result of a handler with `publishes`."""


class StreamOptions(TypedDict, total=False):
    """The settings of a stream besides its name, type and codec. See `App.stream`."""

    retention: Retention
    retain_up_to: Duration | None
    retain_at_least: Duration | None
    max_storage: int | None
    one_message_per_key: bool
    dedupe: bool
    tombstones: bool
    dedupe_window: Duration
    index_keys: bool


class TypedStreamOptions(StreamOptions, total=False):
    """The settings of a stream with a type. See `App.stream`."""

    codec: Codec | None
    allow_plain: bool


class ConsumerOptions(TypedDict, total=False):
    """The settings of a consumer that don't change the signature of its handler. See `App.consumer`."""

    filter: str | Sequence[str]
    where: str | Mapping[str, Any] | Condition | None
    name: str | None
    concurrency: int | tuple[int, int]
    max_deliver: int
    ack_wait: Duration
    max_ack_pending: int
    backoff: Backoff | Duration | Sequence[Duration] | None
    on_exhausted: OnExhausted
    ordered: bool
    timeout: Duration | None
    deliver_policy: DeliverPolicy
    start_seq: int | None
    start_time: datetime | None
    runner: Runner | None
    rate_limit: float | str | None
    rate_burst: int | None
    history: Duration | None
    key_concurrency: int | None
    ack_before_next: bool
    priority: int
    breaker: Breaker | bool | int | None
    middleware: Sequence[Middleware]


class BatchOptions(ConsumerOptions, total=False):
    """The settings of a consumer whose handler takes batches."""

    batch_bytes: int | str | None
    batch_timeout: Duration
    on_batch_error: OnBatchError


class SizedOptions(BatchOptions, total=False):
    """The settings of a consumer with `batch`."""

    group_by_key: bool


class Handles(Protocol[X, D]):
    """Takes a handler, plain or async, that returns anything."""

    @overload
    def __call__(self, function: Callable[Concatenate[X, P], V], /) -> Callable[Concatenate[X, P], V]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[D, P], V], /) -> Callable[Concatenate[D, P], V]: ...
    @overload
    def __call__(self, function: Callable[[], V], /) -> Callable[[], V]: ...


class HandlesInTransaction(Protocol[X, D]):
    """Takes an async handler, which may have a transaction."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[X, P], Coroutine[Any, Any, V]], /
    ) -> Callable[Concatenate[X, P], Coroutine[Any, Any, V]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[D, P], Coroutine[Any, Any, V]], /
    ) -> Callable[Concatenate[D, P], Coroutine[Any, Any, V]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, V]], /
    ) -> Callable[Concatenate[Transaction, P], Coroutine[Any, Any, V]]: ...


class Publishes(Protocol[X, D, U_contra]):
    """Takes a handler, plain or async, that returns messages of a typed stream."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[X, P], Awaitable[Outgoing[U_contra]] | Outgoing[U_contra]], /
    ) -> Callable[Concatenate[X, P], Any]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[D, P], Awaitable[Outgoing[U_contra]] | Outgoing[U_contra]], /
    ) -> Callable[Concatenate[D, P], Any]: ...


class PublishesInTransaction(Protocol[X, D, U_contra]):
    """Takes an async handler that returns messages of a typed stream, and may have a transaction."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[X, P], Coroutine[Any, Any, Outgoing[U_contra]]], /
    ) -> Callable[Concatenate[X, P], Coroutine[Any, Any, Any]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[D, P], Coroutine[Any, Any, Outgoing[U_contra]]], /
    ) -> Callable[Concatenate[D, P], Coroutine[Any, Any, Any]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, Outgoing[U_contra]]], /
    ) -> Callable[Concatenate[Transaction, P], Coroutine[Any, Any, Any]]: ...
