"""Runs a Spark handler: batch to DataFrame, the user's function, and its result to messages.

on the event loop     handle ──▶ a job in a thread ──▶ published and acked by the framework, in one transaction
in the thread         decode ──▶ DataFrame ──▶ function ──▶ outgoing ──▶ Arrow ──▶ (key, data, headers)

The framework does everything else, as for any batch handler: leases, order per key, bisecting, dead
letters, draining.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from headrace import Batch
from headrace.model.errors import ConfigurationError, InvalidInput, LeaseLost
from headrace.model.outcomes import Reject, Release, Retry, Unfit
from headrace_spark.handlers.jobs import Job, run
from headrace_spark.handlers.troubles import Halves, SparkGone, Wholesale, gone, judged
from headrace_spark.handlers.warm import Warm
from headrace_spark.session import SparkUnavailable, stop

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import DataFrame, SparkSession

    from headrace_spark.frames.schema import Schema, Source

logger = logging.getLogger("headrace.spark")

SHORTEST, LONGEST = 0.5, 30.0
"""First and longest wait, in seconds, before a batch is released because Spark is unavailable."""

_TOO_MANY = "HEADRACE_TOO_MANY_RESULTS"

Message = tuple[str, msgspec.Raw] | tuple[str, msgspec.Raw, dict[str, Any]]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a Spark consumer.

    Attributes:
        name: the names of the stream and the consumer, as in `orders:totals`.
        function: called with the DataFrame and the batch.
        source: the source of the payload schema. None for JSON text.
        publishes: the stream that the returned rows are published to.
        max_results: maximum number of returned rows.
        log_every: interval in seconds between two log lines about a running job.
        timeout: maximum duration of a call in seconds.
    """

    name: str
    function: Callable[[DataFrame, Batch], Any]
    source: Source | None
    publishes: str | None
    max_results: int
    log_every: float
    timeout: float | None = None


class Transform:
    """Runs the function of one consumer."""

    def __init__(self, given: Given, warm: Warm) -> None:
        self._given = given
        self._warm = warm
        self._schema: Schema | None = None
        self._halves = Halves()
        self._threads: anyio.CapacityLimiter | None = None
        self._delay = SHORTEST
        warm.add(given.name, self._prepare)

    def _prepare(self, spark: SparkSession) -> None:
        if self._given.source is not None:
            self._schema = self._given.source.schema(spark)

    # --- on the event loop

    async def handle(self, batch: Batch) -> list[Message] | Retry | Reject | None:
        """Handle a batch. Returns the messages to publish, or the outcome of the whole batch.

        If it raises, the framework bisects the batch to find the failing messages.
        """
        if not self._halves.begins(batch):
            return Retry(
                "No other part of its batch got through, to the end or into the stream, so this one was not tried."
            )
        begun = anyio.current_time()
        try:
            found = await self._run(batch)
        except (Retry, Reject) as said:
            return said
        except SparkUnavailable as error:
            await self._wait(error, begun)
            raise Release(str(error)) from error
        except (Wholesale, ConfigurationError) as error:
            return Retry(str(error))
        except (LeaseLost, Release):
            raise
        except Exception as error:
            if self._halves.failed(batch):
                raise
            return Retry(f"{type(error).__name__}: {error} (no part of the batch passed, so it was not halved further)")
        except BaseException:  # cancelled
            self._halves.stopped(batch)
            raise
        self._delay = SHORTEST
        return found

    async def _run(self, batch: Batch) -> list[Message] | None:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(1)
        leases = list({message.lease.id: message.lease for message in batch}.values())

        def check() -> None:
            if any(lease.lost for lease in leases):
                raise LeaseLost("A lease of the batch was lost in the midst of its job, which was cancelled for that.")

        job = self._warm.jobs[self._given.name] = Job(self._given.name, len(batch))
        try:
            work = partial(job.call, self._warm.session, partial(self._work, batch))
            return await run(job, work, threads=self._threads, log_every=self._given.log_every, check=check)
        finally:
            self._warm.jobs[self._given.name] = None

    async def _wait(self, error: SparkUnavailable, begun: float) -> None:
        """Wait before the batch is released because Spark is unavailable. The wait doubles each time in a row.

        The wait ends before the timeout of the batch, since a timeout would count the attempt.
        """
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST)
        if self._given.timeout is not None:
            delay = min(delay, max(begun + self._given.timeout - anyio.current_time(), 0) / 2)
        logger.error("%s waits for %.3g s: %s", self._given.name, delay, error)
        await anyio.sleep(delay)

    # --- in the thread

    def _work(self, batch: Batch, spark: SparkSession) -> list[Message] | None:
        try:
            found = self._worked(batch, spark)
            self._halves.returned(batch)
            return found
        except Exception as error:
            meaning = judged(error, spark)
            if isinstance(meaning, SparkGone) and gone(spark):
                stop()  # the next batch gets a new session
            if meaning is error:
                raise
            raise meaning from error

    def _worked(self, batch: Batch, spark: SparkSession) -> list[Message] | None:
        from headrace_spark.frames import incoming

        decoded = self._decoded(batch)
        if not decoded.messages:
            return None
        kind = None if self._schema is None else self._schema.column.kind
        frame = incoming.frame(spark, incoming.table(decoded, kind), kind)
        return self._messages(self._given.function(frame, batch))

    def _decoded(self, batch: Batch) -> Any:
        """The messages with payloads that fit the schema.

        Messages that are returned because an earlier one of their key does not fit are left out.
        """
        from headrace_spark.frames.incoming import Decoded, decode

        todo = batch.done
        if self._schema is None:
            return Decoded(todo)
        found = decode(todo, self._schema, lambda message, error: _unfit(batch, message, error))
        if not batch.failures:
            return found
        left = {message.seq for message in batch.done}
        return found.only([place for place, message in enumerate(found.messages) if message.seq in left])

    def _messages(self, result: Any) -> list[Message] | None:
        from pyspark.sql import DataFrame

        if result is None:
            return None
        if isinstance(result, (Retry, Reject)):
            raise result
        if not isinstance(result, DataFrame):
            raise Wholesale(
                f"A Spark handler returns a DataFrame, or None for nothing to publish; this one returned a {_kind(result)}."
            )
        if self._given.publishes is None:
            raise Wholesale(
                "The handler returned a DataFrame, and its consumer publishes nothing: say publishes='a-stream', or return None."
            )
        return _messages(self._collected(result))

    def _collected(self, result: DataFrame) -> pa.Table:
        from headrace_spark.frames.outgoing import outgoing, refuse_nulls

        most = self._given.max_results
        try:
            plan = outgoing(result)
        except InvalidInput as error:  # the columns alone show it
            raise Wholesale(str(error)) from error
        try:
            rows = _guarded(plan, most).toArrow()
        except Exception as error:
            if _TOO_MANY in str(error) or "spark.driver.maxResultSize" in str(error):
                raise self._too_many() from error
            raise
        if rows.num_rows > most:
            raise self._too_many()
        refuse_nulls(rows)
        return rows

    def _too_many(self) -> Wholesale:
        return Wholesale(
            f"The handler returned more than max_results={self._given.max_results} rows, or more than the driver may hold"
            ' (spark.driver.maxResultSize): raise that, or write them with df.write.format("headrace").'
        )


def _kind(result: Any) -> str:
    """The type's name with its package, which distinguishes a pandas DataFrame from a Spark DataFrame."""
    module = type(result).__module__.partition(".")[0]
    return type(result).__name__ if module == "builtins" else f"{module}.{type(result).__name__}"


def _unfit(batch: Batch, message: Any, error: Exception) -> None:
    batch.failures[message.seq] = Unfit(f"The payload does not fit: {error}")


def _guarded(plan: DataFrame, most: int) -> DataFrame:
    """A plan that fails as soon as one partition has more rows than the whole result may have.

    Otherwise the rows would come to the driver first. `monotonically_increasing_id` has the
    partition in its upper bits, and the row's number in it in the lower 33.
    """
    from pyspark.sql import functions as sql

    place = sql.monotonically_increasing_id().bitwiseAND(sql.lit((1 << 33) - 1))
    key = sql.when(place >= most, sql.raise_error(sql.lit(_TOO_MANY)).cast("string")).otherwise(sql.col("key"))
    return plan.select(key.alias("key"), "headers", "data")


def _messages(rows: pa.Table) -> list[Message]:
    """The rows as the messages that a handler with `publishes` returns."""
    keys, headers, data = (rows.column(name).to_pylist() for name in ("key", "headers", "data"))
    if rows.column("headers").null_count == rows.num_rows:
        return [(key, msgspec.Raw(text)) for key, text in zip(keys, data, strict=True)]
    return [
        (key, msgspec.Raw(text)) if head is None else (key, msgspec.Raw(text), _headers(head))
        for key, text, head in zip(keys, data, headers, strict=True)
    ]


def _headers(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"The `headers` of a row are no JSON: {text!r:.80} ({error}).") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"The `headers` of a row are no JSON object: {text!r:.80}.")
    return found
