"""`spark_consumer`: declares a consumer with a handler that transforms large batches as DataFrames."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace import App, Backoff, Batch, Breaker
from headrace.model.conditions import Condition
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError
from headrace.model.handling import OnBatchError
from headrace.model.specs import DeliverPolicy, OnExhausted
from headrace.model.text.sizes import size
from headrace_spark.handlers.transform import Transform, TransformSettings
from headrace_spark.handlers.warm_session import warm_session_of
from headrace_spark.session import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

F = TypeVar("F", bound=Callable[..., Any])

PENDING_BATCHES = 10
"""Default number of batches that may be unsettled at a time, over all processes.

It is limited by the number of messages that a consumer may have unsettled, `MAX_PENDING`.
"""

MAX_PENDING = 1_000_000

MAX_BYTES = 1_000_000_000
"""Largest `max_bytes`. A column of Arrow holds less than 2 GiB, and the last message of a batch may be large."""


def spark_consumer(
    app: App,
    stream: str,
    *,
    max_rows: int = 100_000,
    max_bytes: int | str = "256MB",
    max_wait: Duration = "10s",
    schema: Any = None,
    publishes: str | None = None,
    max_results: int | None = None,
    settings: SparkSettings | None = None,
    log_every: Duration = "10s",
    name: str | None = None,
    filter: str | Sequence[str] = ">",  # noqa: A002 - the word of the field
    where: str | Mapping[str, Any] | Condition | None = None,
    timeout: Duration | None = None,
    max_deliver: int = 5,
    ack_wait: Duration = "1m",
    max_ack_pending: int | None = None,
    backoff: Backoff | Duration | Sequence[Duration] | None = None,
    on_exhausted: OnExhausted = "dead_letter",
    on_batch_error: OnBatchError = "bisect",
    ordered: bool = True,
    deliver_policy: DeliverPolicy = "all",
    start_seq: int | None = None,
    start_time: datetime | None = None,
    rate_limit: float | str | None = None,
    rate_burst: int | None = None,
    history: Duration | None = None,
    priority: int = 0,
    breaker: Breaker | bool | int | None = None,
    middleware: Sequence[Callable[..., Any]] = (),
) -> Callable[[F], F]:
    """Make a plain function the Spark handler of a consumer of `stream`.

        @spark_consumer(app, "events", schema=Event, publishes="sessions")
        def sessionize(df: DataFrame, batch: Batch) -> DataFrame | None: ...

    The function is called in a thread with a DataFrame of the batch, sorted by key and seq. If it
    takes two arguments, the second is the `Batch`. The columns are `key`, `seq`, `headers` (JSON
    text, or null), `created_at` and `data`. One transaction publishes the returned rows and acks
    the messages. If the function raises, the batch is bisected until the failing messages stand
    alone. The worker's memory holds up to two batches and the results.

    The arguments that are not described here, from `name` to `middleware`, are those of `App.consumer`.

    Args:
        app: the app that the consumer belongs to. A Spark session is started with it, if there is
            none, and stopped with it.
        max_rows: the maximum number of messages in a batch.
        max_bytes: a batch is full once its payloads have this many bytes, a number or text such as
            "64MB". At most 1 GB.
        max_wait: how long to wait for a batch to fill, from its first message on, up to a minute.
        schema: the type of the payloads: a msgspec Struct (or dataclass, TypedDict, NamedTuple), or
            a DDL string such as "id bigint NOT NULL, total decimal(12, 2)". Then `data` is a
            struct, as in `data.total`, and only the payloads that don't fit go to the dead letters.
            With None `data` is JSON text.
        publishes: the stream that the returned rows are published to. The DataFrame has a string
            column `key`, and either a column `data` or other columns that together are the data.
        max_results: maximum number of rows returned for a batch. The default is ten times
            `max_rows`.
        settings: settings of the session, used if there is none yet.
        log_every: how often the progress of a long job is logged.
        timeout: maximum duration of a call. After it the call's Spark jobs are cancelled, and it
            counts as failed.
        max_deliver: attempts before a message is exhausted. A message that is exhausted alone has
            failed in each of them.
        ack_wait: the visibility timeout. It is extended while a job runs.
        max_ack_pending: how many messages may be unsettled at a time, over all processes. The
            default is ten batches.
        on_batch_error: "bisect", or "retry" for the whole batch.

    Raises:
        ConfigurationError: a setting is invalid, the function has the wrong parameters, or a type
            has no columns.
        InvalidFilter: a filter breaks the grammar.
    """

    options = _options_of_consumer(locals())

    def register(function: F) -> F:
        handler_name = _name(function) if name is None else name
        transform_settings = TransformSettings(
            name=f"{stream}:{handler_name}",
            function=_with_batch(function, handler_name),
            source=_source(schema),
            publishes=publishes,
            max_results=_positive(max_results, "max_results") if max_results is not None else 10 * max_rows,
            database=lambda: app.database.dsn,
            log_every=max(seconds(log_every, "log_every"), 0.01),
        )
        _positive(max_rows, "max_rows")
        batch_bytes = size(max_bytes, "max_bytes")
        if not 1 <= batch_bytes <= MAX_BYTES:
            raise ConfigurationError(f"max_bytes={max_bytes!r} is invalid. It must be from 1 byte to 1 GB.")
        if max_ack_pending is None:
            options["max_ack_pending"] = min(PENDING_BATCHES * max_rows, MAX_PENDING)
        transform: list[Transform] = []

        async def handle(payloads: list[msgspec.Raw], batch: Batch) -> Any:
            return await transform[0].handle(batch)

        handle.__name__ = handle.__qualname__ = handler_name
        app.consumer(
            stream,
            **options,
            publishes=publishes,
            batch=max_rows,
            batch_bytes=batch_bytes,
            batch_timeout=max_wait,
            concurrency=1,
        )(handle)
        warm_session = warm_session_of(app)
        warm_session.settings = settings or warm_session.settings
        transform.append(Transform(transform_settings, warm_session))
        return function

    if not isinstance(app, App):
        raise ConfigurationError(
            f"The first argument of @spark_consumer is {app!r:.80}, and must be the app. Write @spark_consumer(app, 'events')."
        )
    return register


def _positive(number: int, argument: str) -> int:
    if not isinstance(number, int) or number < 1:
        raise ConfigurationError(f"{argument}={number!r} is invalid. It must be a whole number of at least 1.")
    return number


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _with_batch(function: Callable[..., Any], name: str) -> Callable[[DataFrame, Batch], Any]:
    """Adapt the function to take the DataFrame and the batch. Raises `ConfigurationError`."""
    if not callable(function):
        raise ConfigurationError(
            f"The Spark handler {name!r} is of type {type(function).__name__}, and must be a function."
        )
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ConfigurationError(
            f"The Spark handler {name!r} is asynchronous or a generator. It runs in a thread, so write a plain function: def {name}(df, batch)."
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    keyword_only = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    required = [one for one in positional if one.default is one.empty]
    if (
        keyword_only
        or len(required) > 2
        or not (positional or any(one.kind is one.VAR_POSITIONAL for one in parameters))
    ):
        raise ConfigurationError(
            f"The Spark handler {name!r} has the wrong parameters. It takes a DataFrame and, optionally, a Batch: def {name}(df, batch)."
        )
    if len(positional) == 1 and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return lambda frame, _: function(frame)
    return function


def _source(schema: Any) -> Any:
    if schema is None:
        return None
    from headrace_spark.session.errors import extra

    with extra():
        from headrace_spark.frames import schema as schemas

        return schemas.of(schema)


def _options_of_consumer(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that `App.consumer` has, too: from `name` on."""
    names = list(inspect.signature(spark_consumer).parameters)
    return {name: given[name] for name in names[names.index("name") :]}
