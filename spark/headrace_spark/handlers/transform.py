"""Runs a Spark handler: batch to DataFrame, the user's function, and its result to messages.

on the event loop     handle ──▶ a job in a thread ──▶ published and acked by the framework, in one transaction
in the thread         decode ──▶ DataFrame ──▶ function ──▶ results, see `headrace_spark.handlers.results`

The framework does everything else, as for any batch handler: leases, order per key, bisecting, dead
letters, draining.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from headrace import Batch
from headrace.model.errors import ConfigurationError, LeaseLost
from headrace.model.log import Log
from headrace.model.outcomes import Reject, Release, Retry, Unfit, deciding
from headrace.runtime.messages.message import lease_time
from headrace.runtime.messages.staged import StagedMessages
from headrace.runtime.slot import NEVER, current_slot
from headrace_spark.handlers.failures import BatchFailed, Bisection, SparkGone, classified
from headrace_spark.handlers.jobs import Job, run
from headrace_spark.handlers.results import Message, Results
from headrace_spark.handlers.warm_session import WarmSession
from headrace_spark.session import SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace_spark.frames.schema import Schema, Source

log = Log("headrace.spark")

MIN_DELAY, MAX_DELAY = 0.5, 30.0
"""First and longest wait, in seconds, before a batch is released because Spark is unavailable."""


class TransformSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a Spark consumer.

    Attributes:
        name: the names of the stream and the consumer, as in `orders:totals`.
        function: called with the DataFrame and the batch.
        source: the source of the payload schema. None for JSON text.
        publishes: the stream that the returned rows are published to.
        max_results: maximum number of returned rows.
        database: returns the URL of the database.
        log_every: interval in seconds between two log lines about a running job.
    """

    name: str
    function: Callable[[DataFrame, Batch], Any]
    source: Source | None
    publishes: str | None
    max_results: int
    database: Callable[[], str]
    log_every: float


class Timeout:
    """The timeout of the current call of a handler, which stands still from now on, until the session is there.

    A new session and its hooks may take longer than the handler's timeout, and a timeout would count the attempt.
    """

    def __init__(self) -> None:
        self._slot = current_slot.get()
        self._until, self._since = NEVER, time.monotonic()
        if self._slot is not None:
            self._until, self._slot.until = self._slot.until, NEVER

    def begin(self) -> None:
        """Let it run."""
        if self._slot is not None:
            self._slot.until = self._until + time.monotonic() - self._since


class Transform:
    """Runs the function of one consumer."""

    def __init__(self, settings: TransformSettings, warm_session: WarmSession) -> None:
        self._settings = settings
        self._warm_session = warm_session
        self._schema: Schema | None = None
        self._bisection = Bisection()
        self._threads: anyio.CapacityLimiter | None = None
        self._delay = MIN_DELAY
        self._results = (
            None
            if settings.publishes is None
            else Results(settings.name, settings.publishes, settings.max_results, settings.database)
        )
        warm_session.add(settings.name, self._prepare)

    def _prepare(self, spark: SparkSession) -> None:
        if self._settings.source is not None:
            self._schema = self._settings.source.schema(spark)

    # --- on the event loop

    async def handle(self, batch: Batch) -> list[Message] | StagedMessages | Retry | Reject | None:
        """Handle a batch. Returns the messages to publish, or the outcome of the whole batch.

        If it raises, the framework bisects the batch to find the failing messages.
        """
        if not self._bisection.should_call(batch):
            return Retry("This part of the batch was not tried, since every other part of it failed or took too long.")
        try:
            if self._warm_session.lost is not None:
                raise self._warm_session.lost
            found = await self._decided(batch)
        except (Retry, Reject) as outcome:
            return outcome
        except SparkUnavailable as error:
            if self._warm_session.lost is not None:
                self._warm_session.end_app()
            else:
                await self._wait(error)
            raise Release(str(error)) from error
        except (BatchFailed, ConfigurationError) as error:
            return Retry(str(error))
        except (LeaseLost, Release):
            raise
        except Exception as error:
            if self._bisection.failed(batch):
                raise
            return Retry(
                f"{type(error).__name__}: {error} (the batch was not halved further, since no part of it passed)"
            )
        except BaseException:  # cancelled
            self._bisection.stopped(batch)
            raise
        self._delay = MIN_DELAY
        return found

    async def _decided(self, batch: Batch) -> list[Message] | StagedMessages | None:
        """Run the batch. Of a group of exceptions, the one that decides is raised."""
        try:
            return await self._run(batch)
        except BaseExceptionGroup as group:
            outcome = deciding(group)
            raise outcome from outcome.__cause__

    async def _run(self, batch: Batch) -> list[Message] | StagedMessages | None:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(1)
        leases = list({message.lease.id: message.lease for message in batch}.values())

        def check() -> None:
            if any(lease.lost for lease in leases):
                raise LeaseLost("The job was cancelled, since a lease of its batch was lost.")

        job = self._warm_session.jobs[self._settings.name] = Job(self._settings.name, len(batch))
        try:
            work = partial(job.call, self._warm_session.session, partial(self._run_in_thread, batch, job, Timeout()))
            found = await run(
                job,
                work,
                threads=self._threads,
                log_every=self._settings.log_every,
                check=check,
                draining=self._warm_session.draining,
            )
        except BaseException:
            if self._results is not None and not job.abandoned:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._results.discard, limiter=self._threads)
            raise
        else:
            if self._results is not None:
                self._results.taken()
            return found
        finally:
            self._warm_session.jobs[self._settings.name] = None

    async def _wait(self, error: SparkUnavailable) -> None:
        """Wait before the batch is released because Spark is unavailable. The wait doubles each time in a row."""
        Timeout()  # the wait is not the handler's
        delay, self._delay = self._delay, min(self._delay * 2, MAX_DELAY)
        log.error("spark unavailable", consumer=self._settings.name, seconds=delay, error=error)
        await anyio.sleep(delay)

    # --- in the thread

    def _run_in_thread(
        self, batch: Batch, job: Job, timeout: Timeout, spark: SparkSession
    ) -> list[Message] | StagedMessages | None:
        lease_time(batch.messages)  # to make the session takes a while
        timeout.begin()
        try:
            found = self._call_function(batch, spark)
            self._bisection.returned(batch)
            return found
        except Exception as error:
            failure = classified(error, spark)
            if isinstance(failure, SparkGone):
                self._warm_session.note_death(failure, spark)
            if failure is error:
                raise
            raise failure from error
        finally:
            if job.abandoned and self._results is not None:
                self._results.discard()

    def _call_function(self, batch: Batch, spark: SparkSession) -> list[Message] | StagedMessages | None:
        from headrace_spark.frames import incoming

        decoded = self._decoded(batch)
        if not decoded.messages:
            return None
        kind = None if self._schema is None else self._schema.column.kind
        frame = incoming.frame(spark, incoming.table(decoded, kind), kind)
        return self._messages(self._settings.function(frame, batch))

    def _decoded(self, batch: Batch) -> Any:
        """The messages with payloads that fit the schema.

        Messages that are returned because an earlier one of their key does not fit are left out.
        """
        from headrace_spark.frames.incoming import Decoded, decode

        messages = batch.done
        if self._schema is None:
            return Decoded(messages)
        found = decode(messages, self._schema, lambda message, error: _unfit(batch, message, error))
        if not batch.failures:
            return found
        remaining = {message.seq for message in batch.done}
        return found.only([row_number for row_number, message in enumerate(found.messages) if message.seq in remaining])

    def _messages(self, result: Any) -> list[Message] | StagedMessages | None:
        from pyspark.sql import DataFrame

        if result is None:
            return None
        if isinstance(result, (Retry, Reject)):
            raise result
        if not isinstance(result, DataFrame):
            raise BatchFailed(
                f"The Spark handler returned a {_kind(result)}. Return a DataFrame, or None to publish nothing."
            )
        if self._results is None:
            raise BatchFailed(
                "The Spark handler returned a DataFrame, and its consumer has no stream to publish to. Set publishes='a-stream', or return None."
            )
        return self._results.of(result)


def _kind(result: Any) -> str:
    """The type's name with its package, which distinguishes a pandas DataFrame from a Spark DataFrame."""
    module = type(result).__module__.partition(".")[0]
    return type(result).__name__ if module == "builtins" else f"{module}.{type(result).__name__}"


def _unfit(batch: Batch, message: Any, error: Exception) -> None:
    batch.failures[message.seq] = Unfit(f"The payload does not fit: {error}")
