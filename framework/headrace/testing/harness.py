"""The harness: an app at work in a database of its own, in the hands of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Literal, Self

import anyio
import anyio.to_thread
import msgspec

from headrace import store
from headrace.app.app import App
from headrace.app.consumer import Consumer
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError, StoreUnavailable
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage
from headrace.testing.clock import Clock
from headrace.testing.databases import own_server
from headrace.testing.outcomes import Kind, Outcome, Record
from headrace.testing.worker import Worker, full_name

MOST = 10_000
"""Messages that one question hands out at most; a test that asks for more is told."""

MOST_STEPS = 10_000
"""Steps of one `advance`. There is more than one only while messages are in work."""

END = 10.0
"""Seconds, of real time, that the worker has to end in."""

State = Literal["between", "up", "ended"]
"""Of the worker: one is about to start, it lives, or it was stopped and there will be no other."""

ConsumerName = str | Callable[..., Any]
"""A consumer: its handler, its name, or stream:name when two streams have one of that name."""


class NotDrained(AssertionError):
    """There was something left to do when the time for `Harness.drain` was up."""


class Harness:
    """An app at work in a database of its own: `async with Harness(app) as harness`.

    The app's own database is not touched, and the app is as before when the block ends. It is entered once. As many handlers run at a
    time as their `concurrency` allows at most: a governor would need a clock that runs.

    Args:
        app: the app, which doesn't run elsewhere.
        database: the URL of a database for this harness alone, as the fixture `headrace_database` has one; by default one is
            cloned, and dropped at the end.
        within: seconds of real time that `drain` may take, unless it is told otherwise.

    Attributes:
        app: the app. Whatever it can do can be done, as it is connected: `harness.app.admin`, for one.
        clock: the time; see `advance`.
    """

    def __init__(self, app: App, database: str | None = None, *, within: Duration = "30s") -> None:
        self.app = app
        self.clock = Clock()
        self._given = database
        self._within = seconds(within, "within")
        self._record = Record()
        self._crashes: dict[str, int] = {}
        self._worker: Worker | None = None
        self._state: State = "between"
        self._news = anyio.Event()  # the state has changed
        self._over = anyio.Event()
        self._undo = ExitStack()
        self._sweeper: store.Sweeper
        self._schedule: store.Schedule
        self._task: asyncio.Task[None] | None = None

    # --- its beginning and its end

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise ConfigurationError("This harness has been in use: make another one, Harness(app).")
        if self.app._users:
            raise ConfigurationError("The app is connected already: a harness connects it to a database of its own.")
        database = self._given or await anyio.to_thread.run_sync(self._undo.enter_context, own_server().database())
        self._lend(
            dsn=database, _time=self.clock.time(), _witness=None, consumers=[*map(_unscaled, self.app.consumers)]
        )
        # A task and not a task group, so that fixtures may enter in one task and leave in another, as those of pytest-asyncio do.
        self._task = asyncio.create_task(self._live())
        self._task.add_done_callback(self._ended)
        try:
            await self._alive()
        except BaseException:
            await self._end()
            raise
        self._sweeper = store.Sweeper(self.app.database)
        self._schedule = store.Schedule(self.app.database)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end()
        assert self._task is not None
        if kind is None and not self._task.cancelled():
            self._task.result()

    def _lend(self, **settings: Any) -> None:
        """Give the app these until the end."""
        for name, value in settings.items():
            self._undo.callback(setattr, self.app, name, getattr(self.app, name))
            setattr(self.app, name, value)

    async def _live(self) -> None:
        """One worker after another, for as long as they crash; and connected until the end of the block."""
        async with self.app:
            while not (self._state == "ended" or self._over.is_set()):
                worker = Worker(
                    self.app, self.clock, self._record, self._crashes,
                    lambda: self._become("up"), lambda: self._become("between"),
                )  # fmt: skip
                self._worker = self.app._witness = worker
                await worker.run()
                if not worker.crashed:
                    self._become("ended")
            await self._over.wait()

    def _ended(self, _: object) -> None:
        """As it should, or by a failure, and then nobody may wait for what the worker would have done."""
        self._become("ended")
        if self._worker is not None:
            self._worker.forsake()

    def _become(self, state: State) -> None:
        self._state = state
        self._news.set()
        self._news = anyio.Event()

    async def _alive(self) -> Worker:
        """The worker that lives, or will in a moment. Raises what it ended of."""
        if self._task is None:
            raise ConfigurationError("The harness is not in use: say `async with Harness(app) as harness`.")
        while self._state == "between":
            await self._news.wait()
        if self._task.done():
            self._task.result()
        if self._state == "ended" or self._worker is None:
            raise ConfigurationError("The app was stopped: nothing works in this harness any more.")
        return self._worker

    async def _end(self) -> None:
        self._over.set()
        if self._worker is not None:
            self._worker.stop()
        with anyio.CancelScope(shield=True):
            if self._task is not None:
                _, late = await asyncio.wait([self._task], timeout=END)
                if late:
                    self._task.cancel()
                    await asyncio.wait([self._task])
            await anyio.to_thread.run_sync(self._undo.close)

    # --- what happens

    async def publish(self, stream: str, key: str, data: Any, **options: Any) -> int | None:
        """Publish a message. Takes what `App.publish` takes, and returns and raises the same."""
        return await self.app.publish(stream, key, data, **options)

    async def publish_many(self, stream: str, messages: Iterable[tuple[Any, ...]], **options: Any) -> int:
        """Publish messages. Takes what `App.publish_many` takes, and returns and raises the same."""
        return await self.app.publish_many(stream, messages, **options)

    async def drain(self, *, raise_errors: bool = False, within: Duration | None = None) -> None:
        """Wait until nothing is left that is due at the harness's time: scheduled, to be leased, in work, or to be settled.

        What falls due later stays: retries, delayed messages, and what a worker that died had leased. See `advance`.

        Args:
            raise_errors: raise what handlers have raised since the last time, with its traceback: a single error as it is, several as an
                `ExceptionGroup`. A `Retry` or a `Reject` is a handler's word, and no error; a payload that doesn't fit is one.
            within: seconds of real time.

        Raises:
            NotDrained: it took longer; it says what is left.
        """
        limit = self._within if within is None else seconds(within, "within")
        with anyio.move_on_after(limit):
            while not await self._settle_down():
                pass
            if raise_errors:
                self._raise_errors()
            return
        raise NotDrained(self._what_is_left(limit))

    async def _settle_down(self) -> bool:
        try:
            return await (await self._alive()).settle_down(self._schedule)
        except StoreUnavailable:
            if self.app._database is None and self._task is not None:
                # The service has died, and its connections were closed under us: what it died of is what there is to tell.
                await asyncio.wait([self._task])
                self._task.result()
            raise

    async def advance(self, duration: Duration, *, frozen: bool = False) -> None:
        """Move the clock, and let happen what falls due by it: `drain` then does what there is to do.

        Handlers that are in work meanwhile go on: their leases are extended, and when they are past their timeout they are
        stopped. Retention removes what is past its time.

        Args:
            duration: by how much: seconds, a `timedelta`, or text such as "30s".
            frozen: as if the process had been frozen for so long: no lease is extended, and those past their `ack_wait` are lost.
        """
        left = seconds(duration, "duration")
        for _ in range(MOST_STEPS):
            worker = await self._alive()
            step = left if frozen else min(left, worker.longest_step())
            self.clock.move(step)
            left -= step
            await worker.notice_time(extend=not frozen)
            if left <= 0:
                break
        else:
            raise ConfigurationError(
                f"Messages are in work, and can't stay so for {duration}: drain first, or advance in smaller steps."
            )
        await self._sweeper.sweep(self.clock.date())

    def crash_before_ack(self, consumer: ConsumerName, times: int = 1) -> None:
        """Let the worker die when a handler of this consumer has done its work, and before that is acked; `times` in all.

        All consumers die with it, as with a process that is killed: nothing is settled, and transactions are rolled back. A new worker
        starts at once. What the dead one had leased comes again when the clock is past the consumer's `ack_wait`.
        """
        if times < 1:
            raise ConfigurationError(f"times={times} must be at least 1.")
        self._crashes[full_name(self._find(consumer).spec)] = times

    # --- what can be asked

    def outcomes(self, consumer: ConsumerName | None = None, *, key: str | None = None) -> list[Outcome]:
        """What became of deliveries, in the order in which it was said: of one consumer or all, of one key or all."""
        name = None if consumer is None else full_name(self._find(consumer).spec)
        return [
            outcome
            for outcome in self._record.outcomes
            if (name is None or f"{outcome.stream}:{outcome.consumer}" == name) and (key is None or outcome.key == key)
        ]

    def kinds(self, consumer: ConsumerName | None = None, *, key: str | None = None) -> list[Kind]:
        """Only the kinds of these outcomes: `assert harness.kinds(ship, key="orders.1") == ["retried", "acked"]`."""
        return [outcome.kind for outcome in self.outcomes(consumer, key=key)]

    def assert_outcomes(self, consumer: ConsumerName, *kinds: Kind, key: str | None = None) -> None:
        """Assert that these were the outcomes, in this order. Tells each with its error if they were not."""
        found = self.outcomes(consumer, key=key)
        assert tuple(outcome.kind for outcome in found) == kinds, _list(
            f"{_word(consumer)}: expected {', '.join(kinds) or 'no outcome'}; there were", found
        )

    def assert_all_acked(self, consumer: ConsumerName | None = None) -> None:
        """Assert that messages were delivered, and that the last outcome of each is that it was acked."""
        last = {(o.stream, o.consumer, o.seq): o for o in self.outcomes(consumer)}
        assert last, f"{_word(consumer)}: nothing was delivered. Was it published, and did the test drain?"
        others = [outcome for outcome in last.values() if outcome.kind != "acked"]
        assert not others, _list(f"{_word(consumer)}: of {len(last)} messages these are not acked", others)

    async def dead_letters(self, consumer: ConsumerName) -> list[DeadLetter]:
        """The consumer's dead letters, by seq, with their payload, their error and its traceback."""
        found = await store.dead_letters(self.app.database, await self._id(consumer), limit=MOST + 1)
        return _bounded(found)

    async def pending(self, consumer: ConsumerName) -> list[PeekedMessage]:
        """What the consumer has still to do: messages that are in flight, parked until their retry, blocked, and not looked at yet."""
        return _bounded(await store.peek(self.app.database, await self._id(consumer), limit=MOST + 1))

    async def published(
        self, stream: str, key: str = ">", type: Any = Any  # noqa: A002 - as msgspec has it
    ) -> list[StoredMessage]:  # fmt: skip
        """The messages of a stream, in their order.

        Args:
            stream: its name.
            key: which keys, as a filter: `orders.us.>`.
            type: what to convert their `data` to, such as `Order`.
        """
        found = _bounded(await store.messages(self.app.database, stream, filters=[key], limit=MOST + 1))
        if type is Any:
            return found
        return [msgspec.structs.replace(m, data=msgspec.convert(m.data, type)) for m in found]

    # --- in between

    def _find(self, consumer: ConsumerName) -> Consumer:
        """The consumer that is meant. Raises `ConfigurationError`."""
        known = self.app.consumers
        found = [c for c in known if consumer in (c.handler.function, c.spec.name, full_name(c.spec))]
        if len(found) == 1:
            return found[0]
        names = ", ".join(full_name(c.spec) for c in (found or known))
        if found:
            raise ConfigurationError(f"{_word(consumer)!r} is more than one consumer: say which of {names}.")
        raise ConfigurationError(f"The app has no consumer {_word(consumer)!r}: there are {names or 'none'}.")

    async def _id(self, consumer: ConsumerName) -> int:
        spec = self._find(consumer).spec
        return await store.consumer_id(self.app.database, spec.stream, spec.name)

    def _raise_errors(self) -> None:
        errors = self._record.take_errors()
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"handlers have failed {len(errors)} times", errors)

    def _what_is_left(self, limit: float) -> str:
        if self._worker is None or not self._worker.pipelines:
            return f"The app has not started within {limit:g} s."
        lines = [f"There is something left to do after {limit:g} s."]
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
        lines.append(
            "A handler waits for what does not come, or is given ever more to do: does one publish to the stream that it reads?"
        )
        return "\n".join(lines)


def _unscaled(consumer: Consumer) -> Consumer:
    most = consumer.handling.concurrency[1]
    handling = msgspec.structs.replace(consumer.handling, concurrency=(most, most))
    return msgspec.structs.replace(consumer, handling=handling)


def _word(consumer: ConsumerName | None) -> str:
    if consumer is None:
        return "all consumers"
    return consumer if isinstance(consumer, str) else getattr(consumer, "__name__", repr(consumer))


def _list(what: str, outcomes: list[Outcome]) -> str:
    return "\n  ".join([f"{what}{':' if outcomes else ' none.'}", *map(str, outcomes[:50])])


def _bounded(found: list[Any]) -> list[Any]:
    if len(found) > MOST:
        raise ConfigurationError(f"There are more than {MOST:,} messages, too many for a test: ask the store for some.")
    return found
