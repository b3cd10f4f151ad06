"""What an application declares: its streams, its consumers, and what its handlers need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headrace.app import capture
from headrace.app.checks import Check
from headrace.app.consumer import Consumer, check_together, define
from headrace.app.lifespan import Lifespan
from headrace.app.surroundings import Surroundings
from headrace.model.conditions import Condition
from headrace.model.durations import Duration, seconds
from headrace.model.errors import ConfigurationError
from headrace.model.handling import Breaker, OnBatchError, Runner
from headrace.model.specs import Backoff, DeliverPolicy, OnExhausted, Retention, StreamSpec
from headrace.runtime.handlers.dependencies import Scope
from headrace.runtime.handlers.middleware import Middleware, check_middleware
from headrace.sources.postgres.spec import ACTIONS, Action, Deletes, Mode, Numeric, PostgresSpec

if TYPE_CHECKING:
    from dishka import Provider

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Lifespan)


class Declared:
    """The part of an `App` that is written at import time, mostly with decorators."""

    def __init__(self, streams: Sequence[str]) -> None:
        self.consumers: list[Consumer] = []
        self.captures: list[PostgresSpec] = []
        self._streams: dict[str, StreamSpec | None] = dict.fromkeys(streams)
        self._middleware: list[Middleware] = []
        self._surroundings = Surroundings()

    def stream(
        self,
        name: str,
        *,
        retention: Retention = "limits",
        retain_up_to: Duration | None = None,
        retain_at_least: Duration | None = None,
        max_storage: int | None = None,
        one_message_per_key: bool = False,
        dedupe: bool = False,
        tombstones: bool = False,
        dedupe_window: Duration = "2m",
    ) -> str:
        """Declare a stream and what it keeps: at start it is created, or its settings are changed to these.

        Declared by its name alone, or merely named by a consumer, a stream that exists stays as it is.

        Args:
            retention: "limits", those below; or "interest", a message stays until every consumer is done with it.
            retain_up_to: for how long a message stays.
            retain_at_least: for how long it stays whatever the size; when that leaves no room, publishing is refused for a while.
            max_storage: bytes on disk, beyond which the oldest messages are removed.
            one_message_per_key: a new message takes the place of the one before it with the same key.
            dedupe: of a key, an unchanged payload is not published again.
            tombstones: a payload of None deletes its key, once every consumer has been given it.
            dedupe_window: for how long message ids are remembered.

        Returns:
            The name. Raises `ConfigurationError` for settings that contradict each other.
        """
        spec = StreamSpec(
            name=name,
            retention=retention,
            retain_up_to=None if retain_up_to is None else seconds(retain_up_to, "retain_up_to"),
            retain_at_least=None if retain_at_least is None else seconds(retain_at_least, "retain_at_least"),
            max_storage=max_storage,
            one_message_per_key=one_message_per_key,
            dedupe=dedupe,
            tombstones=tombstones,
            dedupe_window=seconds(dedupe_window, "dedupe_window"),
        )
        self._streams[name] = None if spec == StreamSpec(name=name) else spec
        return name

    def capture(
        self,
        *tables: str,
        into: str,
        mode: Mode = "changes",
        name: str | None = None,
        database: str | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        actions: Sequence[Action] = ACTIONS,
        where: str | Mapping[str, Any] | Condition | None = None,
        group: Sequence[str] | None = None,
        key: str | None = None,
        sort: str | None = None,
        deletes: Deletes = "ignore",
        numeric: Numeric = "string",
        transform: str | Callable[..., Any] | None = None,
        backfill: bool = True,
        rate: int | None = None,
        slot: str | None = None,
        publication: str | None = None,
        heartbeat: Duration | None = None,
        alarm: int = 1_000_000_000,
    ) -> str:
        """Declare that tables are captured into a stream: `app.capture("public.orders", into="orders")`.

        At start the stream is created if need be, and the source is made, or changed to these settings. From then on one process captures:
        this one, or another of this app's, or a `headrace serve`.

        Args:
            tables: each as `schema.table`.
            into: the stream. In mode "rows" it is one with `one_message_per_key`.
            mode: "changes", a message for each change; or "rows", of each row the latest version.
            name: the source's name; the stream's by default.
            database: a Postgres URL; by default the database that the app itself is on.
            columns: of a table, by its name, the only columns that are captured.
            actions: which kinds of changes.
            where: which changes become messages: a condition on these messages, such as "data.record.total > 100".
            group: columns by whose values messages are ordered and kept apart, instead of the primary key.
            key: a template of the keys, such as "orders.{record.region}.{record.id}".
            sort: in "rows", a column that grows with every insert and update of a row.
            deletes: in "rows", what becomes of a deleted row: "ignore", its last version stays; or "tombstone".
            numeric: how `numeric` values stand in JSON: as a "string", which nobody rounds, or as a "number".
            transform: a function decorated with `@headrace.transform`, or its name as "module:function".
            backfill: whether tables are read from their first row on, when they are captured for the first time.
            rate: rows a second that a backfill reads at most.
            slot: an existing replication slot to use, instead of one of our own.
            publication: an existing publication to use, instead of one of our own.
            heartbeat: after how long something is written where nothing else is, so that the slot moves on; never by default.
            alarm: bytes of WAL held back by the slot from which on that is told as an alarm.

        Returns:
            The stream's name. Raises `ConfigurationError` for settings that contradict each other, or a name that is taken.
        """
        spec = capture.define(
            tables, into, name, transform, mode=mode, database=database, columns=dict(columns or {}), actions=actions,
            where=where, group=group, key=key, sort=sort, deletes=deletes, numeric=numeric, backfill=backfill, rate=rate,
            slot=slot, publication=publication, heartbeat=heartbeat, alarm=alarm,
        )  # fmt: skip
        if any(spec.name == other.name for other in self.captures):
            raise ConfigurationError(f"Two captures are both called {spec.name!r}: pass name=… to one of them.")
        self.captures.append(spec)
        return into

    def consumer(
        self,
        stream: str,
        *,
        filter: str | Sequence[str] = ">",  # noqa: A002 - the word of the field
        where: str | Mapping[str, Any] | Condition | None = None,
        name: str | None = None,
        concurrency: int | tuple[int, int] = (1, 64),
        max_deliver: int = 10,
        ack_wait: Duration = "30s",
        max_ack_pending: int = 1000,
        backoff: Backoff | Duration | Sequence[Duration] | None = None,
        on_exhausted: OnExhausted = "dead_letter",
        ordered: bool = True,
        timeout: Duration | None = None,
        deliver_policy: DeliverPolicy = "all",
        start_seq: int | None = None,
        start_time: datetime | None = None,
        transactional: bool = False,
        publishes: str | None = None,
        batch: int | None = None,
        batch_timeout: Duration = 0.0,
        group_by_key: bool = False,
        on_batch_error: OnBatchError = "retry",
        runner: Runner | None = None,
        rate_limit: float | str | None = None,
        rate_burst: int | None = None,
        key_concurrency: int | None = None,
        ack_before_next: bool = False,
        priority: int = 0,
        breaker: Breaker | bool | int | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[F], F]:
        """Make a function the handler of a consumer of `stream`.

        The function takes the payload, decoded into the type that it is annotated with, a `Message`, both or neither. When it
        returns, the message is acked; when it raises, the message is delivered again after its backoff. A plain function
        runs in a thread.

        Args:
            filter: which keys: one filter or several, as NATS has them (`orders.*.new`, `orders.us.>`).
            where: which of these by their content: text such as `"data.status = 'paid' and data.total > 100"`, the same as JSON, or
                `field("total") > 100`.
            name: the consumer's name, by which the store knows its place; the function's name by default.
            concurrency: how many handlers run at a time in one process: exactly so many, or a range to be scaled in.
            max_deliver: attempts before a message is exhausted; -1 for no limit.
            ack_wait: the visibility timeout: how long a process that died keeps its messages from others.
            max_ack_pending: how many messages may be unsettled at a time, over all processes.
            backoff: the wait before the next attempt: one duration, a list for each attempt, or a `Backoff`; by default
                exponential from 1 s to 5 minutes with jitter.
            on_exhausted: what becomes of an exhausted message: "dead_letter"; "block", its key waits for a person; "drop".
            ordered: whether the messages of a key are handled strictly in order.
            timeout: how long the handler may take for one message.
            deliver_policy: where the consumer begins when it is new: with "all" there is; with what is "new"; at `start_seq`
                ("by_start_seq") or `start_time` ("by_start_time"); or with the last message of each key ("last_per_key").
            transactional: run the handler inside a transaction, in which the ack commits together with what it writes through the
                `Transaction` that it takes; when the lease was lost, nothing is committed.
            publishes: a stream. What the handler returns is published to it, together with the ack: (key, data) or
                (key, data, headers), a list of these, or None for nothing.
            batch: take up to so many messages at a time, as a `list[Order]` or a `Batch`. All are acked when the handler returns, but for
                those of which it says otherwise.
            batch_timeout: how long to wait for a batch to fill, once there is a first message.
            group_by_key: a batch is of one key: the messages of it that wait, in their order.
            on_batch_error: when the handler of a batch raises: "retry" all of it; or "bisect", run halves of it until what fails is
                found.
            runner: "process" for work that keeps a processor busy, or "thread", the default of a plain function. A process can be stopped
                by a timeout, a thread can't, and is waited for.
            rate_limit: deliveries a second, over all processes: a number, or text such as "100/s" or "1000/h".
            rate_burst: how many may be delivered at once after a pause; one second's worth by default.
            key_concurrency: with `ordered=False`, how many messages of a key one process handles at a time.
            ack_before_next: begin a key's next message only once the ack of the one before is committed, so that a crash repeats one
                message of a key at most, or one batch, and not a run of them. Each message of a key then costs a round trip to
                the database. Transactional handlers do so anyway.
            priority: while a consumer of higher priority has messages that wait, others in its process keep to their least concurrency.
            breaker: pause when handlers fail again and again, and probe with single messages: True, a number of failures in a row, or a
                `Breaker`.
            middleware: what runs around this handler alone, the outermost first, inside of the app's; see `middleware`.

        Raises:
            ConfigurationError: a setting that can't be, an annotation that can't be decoded, a name that is taken.
            InvalidFilter: a filter that breaks the grammar.
        """

        def register(function: F) -> F:
            consumer = define(
                function, stream, filter=filter, where=where, name=name, concurrency=concurrency, timeout=timeout,
                ack_wait=ack_wait, backoff=backoff, rate_limit=rate_limit, batch=batch, batch_timeout=batch_timeout,
                group_by_key=group_by_key, runner=runner, breaker=breaker,
                handling={
                    "transactional": transactional, "publishes": publishes, "on_batch_error": on_batch_error,
                    "key_concurrency": key_concurrency, "ack_before_next": ack_before_next, "priority": priority,
                    "middleware": check_middleware(middleware),
                },
                settings={
                    "deliver_policy": deliver_policy, "start_seq": start_seq, "start_time": start_time,
                    "max_deliver": max_deliver, "max_ack_pending": max_ack_pending, "on_exhausted": on_exhausted,
                    "ordered": ordered, "rate_burst": rate_burst,
                },
            )  # fmt: skip
            check_together(consumer)
            self._add(consumer)
            return function

        if callable(stream):
            raise ConfigurationError("Write @app.consumer('orders'): the decorator needs the stream that it reads.")
        return register

    def _add(self, consumer: Consumer) -> None:
        spec = consumer.spec
        for other in self.consumers:
            if (other.spec.stream, other.spec.name) == (spec.stream, spec.name):
                raise ConfigurationError(
                    f"Two handlers of {spec.stream!r} are both called {spec.name!r}, and would share one place in the stream:"
                    " pass name=… to one of them."
                )
        self.consumers.append(consumer)

    def middleware(self, function: Middleware) -> Middleware:
        """Make an async function run around every handler: `async def timed(delivery, call_next): … await call_next()`.

        The first that is added is the outermost. See `headrace.runtime.handlers.middleware`. Raises `ConfigurationError`.
        """
        self._middleware.extend(check_middleware([function]))
        return function

    def lifespan(self, function: L) -> L:
        """Make an async generator function what lives as long as the app runs: `async def pool(app): … yield pool …`.

        It begins when the database is connected and before the consumers start, and ends when they have drained. What it yields is
        `app.state`, and can be taken by its type. Several are nested, the first outermost. What it raises ends the start as it is.

        Returns:
            The function. Raises `ConfigurationError` if it is none of that kind.
        """
        self._surroundings.lifespans.add(function)
        return function

    @property
    def state(self) -> Any:
        """What the lifespan has yielded; of several the last. Raises `ConfigurationError` while the app does not run."""
        return self._surroundings.lifespans.state

    @overload
    def provide(self, source: F, *, scope: Scope = "message", provides: Any = None, override: bool = False) -> F: ...
    @overload
    def provide(self, source: Provider) -> Provider: ...
    @overload
    def provide(
        self, *, scope: Scope = "message", provides: Any = None, override: bool = False
    ) -> Callable[[F], F]: ...

    def provide(
        self, source: Any = None, *, scope: Scope = "message", provides: Any = None, override: bool = False
    ) -> Any:
        """Make a function provide what its return annotation says, to handlers that take that as `Depends[T]`.

        What its own parameters are annotated with is provided to it in turn. There without being provided are the `Message` or `Batch` of
        the delivery, the `Transaction` of a transactional handler, the `App`, and what a lifespan has yielded.

        Args:
            source: a function, plain or async; a generator function, plain or async, which goes on behind its `yield` when the scope ends
                and sees there what failed; a class, made with what its `__init__` takes; or a `Provider` of dishka's, as it is.
            scope: "message", made for each message or batch and torn down when its handler has ended; or "app", made before the consumers
                start and torn down when they have drained.
            provides: the type that is provided, if not what is annotated: a protocol, say.
            override: take the place of what provides the same already, or of what a lifespan yields; in a test, say.

        Returns:
            What it was given. Raises `ConfigurationError`.
        """
        if source is None:
            return lambda source: self.provide(source, scope=scope, provides=provides, override=override)
        self._surroundings.providers.add(source, scope, provides, override=override)
        return source

    @overload
    def check(self, function: F) -> F: ...
    @overload
    def check(self, *, timeout: Duration = "30s") -> Callable[[F], F]: ...

    def check(self, function: Any = None, *, timeout: Duration = "30s") -> Any:
        """Make a function a startup check: no consumer starts unless it returns. It fails by raising, or by returning False.

        All checks are run, and all that failed are told in one `ConfigurationError`. A plain function runs in a thread. It may take, as
        `Depends[T]`, what lives as long as the app.

        Args:
            timeout: how long it may take.

        Returns:
            The function. Raises `ConfigurationError` if it takes anything else.
        """
        if function is None:
            return lambda function: self._check(function, timeout)
        return self._check(function, timeout)

    def _check(self, function: F, timeout: Duration) -> F:
        self._surroundings.checks.append(Check.of(function, seconds(timeout, "timeout")))
        return function
