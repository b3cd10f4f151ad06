"""The test harness: runs an app in its own database, under the control of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, Self

import anyio
import anyio.to_thread
import msgspec

from headrace import store
from headrace.app.app import App
from headrace.app.consumer import Consumer
from headrace.app.streams.stream import Stream, name_of_stream
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError, StoreUnavailable
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.runtime.maintenance.sweeper import Sweeper
from headrace.testing.clock import Clock
from headrace.testing.databases import own_server
from headrace.testing.outcomes import Kind, Outcome, Record
from headrace.testing.worker import Worker, full_name

MAX_MESSAGES = 10_000
"""The maximum number of messages that one query returns. More of them raise an error."""

MAX_STEPS = 10_000
"""The maximum number of steps in one `advance`. It takes more than one only while messages are being handled."""

END_TIMEOUT = 10.0
"""Seconds of real time within which the worker has to end."""

State = Literal["between", "up", "ended"]
"""The state of the worker: one is about to start, one is running, or it has ended and no other will start."""

ConsumerName = str | Callable[..., Any]
"""A consumer: its handler, its name, or stream:name if two streams have a consumer of that name."""


class NotDrained(AssertionError):
    """`Harness.drain` timed out with work left to do."""


class Harness:
    """Runs an app in its own database: `async with Harness(app) as harness`.

    The app's own database is not used, and the app is restored when the block ends. A harness can be
    entered once. Each consumer runs up to the maximum of its `concurrency`, because a governor would need a
    clock that runs.

    Args:
        app: the app, which must not run elsewhere.
        database: the URL of a database for this harness alone, such as the one of the fixture
            `headrace_database`. By default a database is cloned, and dropped at the end.
        provide: values by their type, such as `{Carrier: FakeCarrier()}`. Handlers and providers get them
            instead of what the app's own providers and lifespans make.
        within: the default timeout of `drain`, in real time.

    Attributes:
        app: the app. It is connected, so all its methods work, for example those of `harness.app.admin`.
        clock: the time, see `advance`.
    """

    def __init__(
        self,
        app: App,
        database: str | None = None,
        *,
        provide: Mapping[Any, Any] | None = None,
        within: Duration = "30s",
    ) -> None:
        self.app = app
        self.clock = Clock()
        self._database_url = database
        self._provide = provide
        self._within = seconds(within, "within")
        self._record = Record()
        self._crashes: dict[str, int] = {}
        self._worker: Worker | None = None
        self._state: State = "between"
        self._state_changed = anyio.Event()  # the state has changed
        self._end_requested = anyio.Event()
        self._undo = ExitStack()
        self._sweeper: Sweeper
        self._scheduler: Scheduler
        self._task: asyncio.Task[None] | None = None

    # --- start and end

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise ConfigurationError("This harness was used before. Make another one: Harness(app).")
        if self.app._users:
            raise ConfigurationError(
                "The app is already connected. A harness connects it to its own database, so don't enter the app before."
            )
        database = self._database_url or await anyio.to_thread.run_sync(
            self._undo.enter_context, own_server().database()
        )
        if self._provide:
            resources = self.app._resources
            self._override(resources, _providers=resources.providers.with_values(self._provide))
        self._override(
            self.app,
            dsn=database,
            _time=self.clock.time(),
            _witness=None,
            consumers=[*map(_with_maximum_concurrency, self.app.consumers)],
        )
        # A task and not a task group, because fixtures may enter in one task and leave in another, as
        # those of pytest-asyncio do.
        self._task = asyncio.create_task(self._run_workers())
        self._task.add_done_callback(self._ended)
        try:
            await self._running_worker()
        except BaseException:
            await self._end()
            raise
        self._sweeper = Sweeper(self.app.database)
        self._scheduler = Scheduler(self.app.database)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end()
        assert self._task is not None
        if kind is None and not self._task.cancelled():
            self._task.result()

    def _override(self, target: Any, **settings: Any) -> None:
        """Set these attributes until the end."""
        for name, value in settings.items():
            self._undo.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)

    async def _run_workers(self) -> None:
        """Run a worker, and another one after each crash. Stays connected until the end of the block."""
        async with self.app:
            while not (self._state == "ended" or self._end_requested.is_set()):
                worker = Worker(
                    self.app,
                    self.clock,
                    self._record,
                    self._crashes,
                    lambda: self._set_state("up"),
                    lambda: self._set_state("between"),
                )
                self._worker = self.app._witness = worker
                await worker.run()
                if not worker.crashed:
                    self._set_state("ended")
            await self._end_requested.wait()

    def _ended(self, _: object) -> None:
        """The task has ended, normally or with an error. Cancel every wait for the worker."""
        self._set_state("ended")
        if self._worker is not None:
            self._worker.cancel_waits()

    def _set_state(self, state: State) -> None:
        self._state = state
        self._state_changed.set()
        self._state_changed = anyio.Event()

    async def _running_worker(self) -> Worker:
        """The running worker, or the one that is about to start. Raises the error that ended it."""
        if self._task is None:
            raise ConfigurationError("The harness is not entered. Use it as `async with Harness(app) as harness:`.")
        while self._state == "between":
            await self._state_changed.wait()
        if self._task.done():
            self._task.result()
        if self._state == "ended" or self._worker is None:
            raise ConfigurationError("The app was stopped, so this harness can't be used any more. Make another one.")
        return self._worker

    async def _end(self) -> None:
        self._end_requested.set()
        if self._worker is not None:
            self._worker.stop()
        with anyio.CancelScope(shield=True):
            if self._task is not None:
                _, late = await asyncio.wait([self._task], timeout=END_TIMEOUT)
                if late:
                    self._task.cancel()
                    await asyncio.wait([self._task])
            await anyio.to_thread.run_sync(self._undo.close)

    # --- actions

    async def publish(self, stream: str, key: str, data: Any, **options: Any) -> int | None:
        """Publish a message. The arguments, the result and the errors are those of `App.publish`."""
        return await self.app.publish(stream, key, data, **options)

    async def publish_many(self, stream: str, messages: Iterable[tuple[Any, ...]], **options: Any) -> int:
        """Publish messages. The arguments, the result and the errors are those of `App.publish_many`."""
        return await self.app.publish_many(stream, messages, **options)

    async def drain(self, *, raise_errors: bool = False, within: Duration | None = None) -> None:
        """Wait until nothing is left that is due at the harness's time: nothing to publish, lease, handle or settle.

        Work that falls due later stays: retries, delayed messages, and messages that a crashed worker had
        leased. See `advance`.

        Args:
            raise_errors: raise the errors of handlers since the previous call, with their tracebacks. A
                single error is raised as it is, and several as an `ExceptionGroup`. `Retry` and `Reject`
                are not errors here. An invalid payload is one.
            within: the timeout, in real time.

        Raises:
            NotDrained: the timeout passed. The message lists the work that is left.
        """
        limit = self._within if within is None else seconds(within, "within")
        with anyio.move_on_after(limit):
            while not await self._process_due():
                pass
            if raise_errors:
                self._raise_errors()
            return
        raise NotDrained(self._describe_remaining_work(limit))

    async def _process_due(self) -> bool:
        try:
            return await (await self._running_worker()).process_due(self._scheduler)
        except StoreUnavailable:
            if self.app._database is None and self._task is not None:
                # The service has died and closed its connections, so the useful error is the one that ended it.
                await asyncio.wait([self._task])
                self._task.result()
            raise

    async def advance(self, duration: Duration, *, frozen: bool = False) -> None:
        """Move the clock. `drain` then processes what has fallen due.

        Handlers that are running continue. Their leases are extended, and handlers that exceed their
        timeout are cancelled. Retention removes expired messages.

        Args:
            duration: how far to move the clock: seconds, a `timedelta`, or text such as "30s".
            frozen: behave as if the process was frozen for this time: no lease is extended, and those past
                their `ack_wait` are lost.
        """
        remaining = seconds(duration, "duration")
        for _ in range(MAX_STEPS):
            worker = await self._running_worker()
            await worker.answered()
            step = remaining if frozen else min(remaining, worker.longest_step())
            self.clock.move(step)
            remaining -= step
            await worker.notice_time(extend=not frozen)
            if remaining <= 0:
                break
        else:
            raise ConfigurationError(
                f"Handlers are processing messages, which can't last for {duration}. Drain first, or advance in smaller steps."
            )
        await self._sweeper.sweep(self.clock.date())

    def crash_before_ack(self, consumer: ConsumerName, times: int = 1) -> None:
        """Crash the worker after a handler of this consumer has succeeded and before the ack, `times` times in all.

        All consumers crash with it, as in a killed process: nothing is settled, and transactions are rolled
        back. A new worker starts immediately. The messages that the old one had leased are delivered again when
        the clock is past the consumer's `ack_wait`.
        """
        if times < 1:
            raise ConfigurationError(f"times={times} is invalid. It must be at least 1.")
        self._crashes[full_name(self._find(consumer).spec)] = times

    # --- queries

    def outcomes(self, consumer: ConsumerName | None = None, *, key: str | None = None) -> list[Outcome]:
        """The outcomes of deliveries, in the order in which they were recorded, of one consumer or all, and of
        one key or all.
        """
        name = None if consumer is None else full_name(self._find(consumer).spec)
        return [
            outcome
            for outcome in self._record.outcomes
            if (name is None or f"{outcome.stream}:{outcome.consumer}" == name) and (key is None or outcome.key == key)
        ]

    def kinds(self, consumer: ConsumerName | None = None, *, key: str | None = None) -> list[Kind]:
        """The kinds of the outcomes of a consumer, or of all, and of a key, or of all: `assert harness.kinds(ship, key="orders.1") == ["retried", "acked"]`."""
        return [outcome.kind for outcome in self.outcomes(consumer, key=key)]

    def assert_outcomes(self, consumer: ConsumerName, *kinds: Kind, key: str | None = None) -> None:
        """Assert that the outcomes of a consumer, or of one key there, have these kinds, in this order. The
        failure message lists each outcome with its error.
        """
        found = self.outcomes(consumer, key=key)
        assert tuple(outcome.kind for outcome in found) == kinds, _list(
            f"{_label(consumer)}: expected {', '.join(kinds) or 'no outcome'}, and there were", found
        )

    def assert_all_acked(self, consumer: ConsumerName | None = None) -> None:
        """Assert that messages were delivered, and that the last outcome of each is `acked`."""
        last = {(o.stream, o.consumer, o.seq): o for o in self.outcomes(consumer)}
        assert last, f"{_label(consumer)}: nothing was delivered. Was it published, and did the test drain?"
        not_acked = [outcome for outcome in last.values() if outcome.kind != "acked"]
        assert not not_acked, _list(f"{_label(consumer)}: of {len(last)} messages these are not acked", not_acked)

    async def dead_letters(self, consumer: ConsumerName) -> list[DeadLetter]:
        """The consumer's dead letters, in the order of seq, with their payload, error and traceback."""
        found = await store.dead_letters(self.app.database, await self._id(consumer), limit=MAX_MESSAGES + 1)
        return _bounded(found)

    async def pending(self, consumer: ConsumerName) -> list[PeekedMessage]:
        """The messages that the consumer has still to process: in flight, parked, blocked, and not read yet."""
        return _bounded(await store.peek(self.app.database, await self._id(consumer), limit=MAX_MESSAGES + 1))

    async def published(
        self,
        stream: str | Stream[Any],
        key: str = ">",
        type: Any = Any,  # noqa: A002 - as msgspec has it
    ) -> list[StoredMessage]:
        """The messages of a stream, in their order.

        Args:
            stream: the stream's name, or a typed stream, whose payloads are decoded into its type.
            key: a filter of keys, such as `orders.us.>`.
            type: the type to which their `data` is converted, such as `Order`.
        """
        name = name_of_stream(stream)
        found = _bounded(
            await store.messages(self.app.database, name, store.SeqRange(filters=[key]), limit=MAX_MESSAGES + 1)
        )
        if isinstance(stream, Stream):
            return [msgspec.structs.replace(m, data=stream.decoded(m)) for m in found]
        if type is Any:
            return found
        return [msgspec.structs.replace(m, data=msgspec.convert(m.data, type)) for m in found]

    # --- internals

    def _find(self, consumer: ConsumerName) -> Consumer:
        """Find a consumer. Raises `ConfigurationError` if there is none, or more than one."""
        known = self.app.consumers
        found = [c for c in known if consumer in (c.handler.function, c.spec.name, full_name(c.spec))]
        if len(found) == 1:
            return found[0]
        names = ", ".join(full_name(c.spec) for c in (found or known))
        if found:
            raise ConfigurationError(
                f"{_label(consumer)!r} matches more than one consumer. Use one of these names: {names}."
            )
        raise ConfigurationError(f"The app has no consumer {_label(consumer)!r}. Its consumers are {names or 'none'}.")

    async def _id(self, consumer: ConsumerName) -> int:
        spec = self._find(consumer).spec
        return await store.consumer_id(self.app.database, spec.stream, spec.name)

    def _raise_errors(self) -> None:
        errors = self._record.take_errors()
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"handlers failed {len(errors)} times", errors)

    def _describe_remaining_work(self, limit: float) -> str:
        if self._worker is None or not self._worker.pipelines:
            return f"The app has not started within {limit:g} s."
        lines = [f"There is work left to do after {limit:g} s."]
        for pipeline in self._worker.pipelines:
            name, state = pipeline.spec.name, pipeline.statistics()
            lines.append(
                f"  {name}: {state['leased']} leased so far, {state['held']} of them unsettled, {state['waiting']} waiting"
            )
        lines += [
            f"  {message.consumer} is at {message.key} (seq {message.seq}, attempt {message.attempt})"
            for delivery in list(self._worker.at_work.values())[:10]
            for message in delivery.messages[:10]
        ]
        lines.append("A handler may be waiting forever, or may publish to the stream that it reads.")
        return "\n".join(lines)


def _with_maximum_concurrency(consumer: Consumer) -> Consumer:
    maximum = consumer.handling.concurrency[1]
    handling = msgspec.structs.replace(consumer.handling, concurrency=(maximum, maximum))
    return msgspec.structs.replace(consumer, handling=handling)


def _label(consumer: ConsumerName | None) -> str:
    if consumer is None:
        return "all consumers"
    return consumer if isinstance(consumer, str) else getattr(consumer, "__name__", repr(consumer))


def _list(title: str, outcomes: list[Outcome]) -> str:
    return "\n  ".join([f"{title}{':' if outcomes else ' none.'}", *map(str, outcomes[:50])])


def _bounded(found: list[Any]) -> list[Any]:
    if len(found) > MAX_MESSAGES:
        raise ConfigurationError(
            f"There are more than {MAX_MESSAGES:,} messages, too many for a test. Query the store for some of them."
        )
    return found
