"""Declarations that an app and a router have in common: streams, consumers, captures, schedules and middleware."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack, overload

from msgspec.structs import replace

from headrace.app import capture
from headrace.app.consumer import Consumer, check_together, define
from headrace.app.periodic import schedule as periodic
from headrace.app.periodic.schedule import Made, Schedule
from headrace.app.streams.signatures import StreamOptions, TypedStreamOptions
from headrace.app.streams.stream import Stream, name_of_stream
from headrace.model.conditions import Condition
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError
from headrace.model.handling import Breaker, OnBatchError, Runner
from headrace.model.schedules import Missed
from headrace.model.specs import Backoff, DeliverPolicy, OnExhausted, Retention, StreamSpec, parsed
from headrace.runtime.formats.codec import Codec
from headrace.runtime.formats.format import StreamFormat, check_codec, check_conditions
from headrace.runtime.handlers.middleware import Middleware, check_middleware
from headrace.runtime.handlers.signature import is_async
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.settling.dead_letters import DeadLetterHook
from headrace.sources.postgres.settings import ACTIONS, Action, Deletes, Mode, Numeric
from headrace.sources.postgres.spec import PostgresSpec

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
H = TypeVar("H", bound=DeadLetterHook)

MAX_SCHEDULES = 1000
"""The largest number of schedules of an app. A process asks for all of them with one query."""


def _arguments(local_variables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a method, from what `locals()` returns on its first line."""
    return {name: value for name, value in local_variables.items() if name != "self"}


class Declarations:
    """The declarations of an app at import time, mostly with decorators."""

    def __init__(self, streams: Sequence[str] = ()) -> None:
        self.consumers: list[Consumer] = []
        self.captures: list[PostgresSpec] = []
        self.schedules: list[Schedule] = []
        self._streams: dict[str, StreamSpec | None] = dict.fromkeys(streams)
        self._middleware: list[Middleware] = []
        self._formats: dict[str, StreamFormat] = {}
        self._dead_letter_hooks: list[DeadLetterHook] = []

    @overload
    def stream(self, name: str, **settings: Unpack[StreamOptions]) -> str: ...
    @overload
    def stream(self, name: str, type: type[T], **settings: Unpack[TypedStreamOptions]) -> Stream[T]: ...
    @overload
    def stream(self, name: str, type: object, **settings: Unpack[TypedStreamOptions]) -> Stream[Any]: ...

    def stream(
        self,
        name: str,
        type: Any = None,  # noqa: A002 - as msgspec has it
        *,
        codec: Codec | None = None,
        allow_plain: bool = False,
        retention: Retention = "limits",
        retain_up_to: Duration | None = None,
        retain_at_least: Duration | None = None,
        max_storage: int | None = None,
        one_message_per_key: bool = False,
        dedupe: bool = False,
        tombstones: bool = False,
        dedupe_window: Duration = "2m",
        index_keys: bool = False,
    ) -> Any:
        """Declare a stream and its retention. At start it is created, or its settings are changed to these.

        An existing stream keeps its settings if you declare it by its name alone, or only name it
        in a consumer.

        Args:
            type: the type of the payloads, which makes the stream typed: a class, a union, or `Any`.
            codec: encodes the payloads that this app publishes, and decodes them for its handlers, such
                as `AesGcm`. It needs a type.
            allow_plain: whether handlers also take payloads that the codec has not encoded.
            retention: `limits` applies the limits below. `interest` keeps a message until every
                consumer is done with it, whatever else is set. Without a consumer, nothing is removed.
            retain_up_to: messages older than this are removed.
            retain_at_least: younger messages are kept whatever the stream's size. If that leaves no
                room, publishing is refused (`StreamFull`, in SQL `HR005`) until there is some.
            max_storage: the size on disk above which the oldest messages are removed. In bytes.
            one_message_per_key: a new message replaces the previous one of the same key (compaction).
                It is chosen when the stream is created.
            dedupe: a payload that equals the latest one of its key is not published, compared by the
                SHA-256 of its JSON, unless that one has a time to live. It needs `one_message_per_key`.
            tombstones: a `null` payload deletes its key, after every consumer has received it. It needs
                `one_message_per_key`.
            dedupe_window: how long message ids are remembered, so that a repeated publish has no
                effect.
            index_keys: an index of keys, so that the messages of a key or of a filter are found without
                searching the stream. Publishing takes longer. With `one_message_per_key` there always
                is one.

        Returns:
            The typed stream, or the name of a stream without a type. Raises `ConfigurationError` for
            settings that contradict each other.
        """
        given = _arguments(locals())
        for extra in ("type", "codec", "allow_plain"):
            del given[extra]
        spec = StreamSpec(**parsed(StreamSpec, given))
        self._check_open()
        stored_as = None if type is None else _format(spec, type, codec, allow_plain)
        if stored_as is None and (codec is not None or allow_plain):
            raise ConfigurationError(
                f"The stream {name!r} has a codec and no type: pass the type of its payloads, or Any."
            )
        if stored_as is not None:
            self._add_format(stored_as)
        self._streams[name] = None if spec == StreamSpec(name=name) else spec
        return name if stored_as is None else Stream(self, stored_as)

    def _add_format(self, stored_as: StreamFormat) -> None:
        name = stored_as.stream
        if name in self._formats:
            raise ConfigurationError(
                f"The stream {name!r} is declared with a type twice: declare it once, and import what app.stream returns."
            )
        for consumer in self.consumers:
            if consumer.spec.stream == name:
                check_conditions(stored_as, consumer.spec)
        for schedule in self.schedules:
            if schedule.spec.stream == name:
                schedule.check_format(stored_as)
        self._formats[name] = stored_as

    def _publishes(self, stream: str) -> Publisher:
        """Return what publishes to a stream of this app or router. Raises `ConfigurationError`."""
        raise NotImplementedError

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
        verify_every: Duration | None = None,
        slot: str | None = None,
        shared_slot: str | None = None,
        publication: str | None = None,
        heartbeat: Duration | None = None,
        alarm: int = 1_000_000_000,
    ) -> str:
        """Declare that tables are captured into a stream: `app.capture("public.orders", into="orders")`.

        At start the stream is created if needed, and the source is created or changed to these
        settings. From then on one process captures: this one, another one of this app, or a
        `headrace serve`.

        Args:
            tables: the captured tables, each as `schema.table`. Write double quotes around names that
                are not plain lower case.
            into: the stream. In mode "rows" it has `one_message_per_key`.
            mode: `changes` publishes a message for each change. `rows` publishes the latest version of
                each row, to a stream with `one_message_per_key`.
            name: the source's name. The stream's name by default.
            database: the Postgres URL of the captured database. Answers show `…` for its password. By
                default the database of the app itself.
            columns: the only columns that are captured, by table. All columns of other tables are
                captured.
            actions: which kinds of changes become messages.
            where: which changes become messages: a condition on the message before `transform`. Such as
                "data.record.total > 100".
            group: columns that make up the key. Rows with the same values in them are ordered together.
            key: a template of the keys. Such as "orders.{record.region}.{record.id}".
            sort: in mode `rows`, a column that grows with every insert and update of a row. A backfill
                reads in its order.
            deletes: in mode `rows`, the effect of a row that is deleted, or no longer meets `where`.
                `ignore` keeps its last version, and `tombstone` publishes a tombstone.
            numeric: the JSON form of `numeric` values: a `string`, which no parser rounds, or a
                `number`.
            transform: a function decorated with `@headrace.transform`, as `module:name`. It makes the
                published data from a message's data. Pass the function, or its name.
            backfill: whether the existing rows of a table are published when it is captured for the
                first time.
            rate: the maximum number of rows that a backfill reads.
            verify_every: the time after which each table is compared with the stream again.
                Differences are reported. Never by default.
            slot: an existing replication slot to use. By default Headrace creates its own.
            shared_slot: the name of a replication slot that all sources with this name share. Headrace
                creates it, and drops it with the last of them. By default Headrace creates the
                source's own slot.
            publication: an existing publication to use. By default Headrace creates its own.
            heartbeat: the time without changes after which a heartbeat is written to the captured
                database, so that the slot advances. Never by default.
            alarm: the size of the WAL held back by the slot at which an alarm begins. In bytes.

        Returns:
            The stream's name. Raises `ConfigurationError` for settings that contradict each other,
            or a name that is taken.
        """
        self._add_capture(capture.define(**_arguments(locals())))
        return into

    def _add_capture(self, spec: PostgresSpec) -> None:
        self._check_open()
        if any(spec.name == other.name for other in self.captures):
            raise ConfigurationError(f"Two captures are both called {spec.name!r}: pass name=… to one of them.")
        self.captures.append(spec)

    def every(
        self,
        every: Duration,
        stream: str | Stream[Any],
        *,
        zone: str | None = None,
        name: str | None = None,
        key: str | Made | None = None,
        data: Any = None,
        headers: Mapping[str, Any] | None = None,
        missed: Missed = "skip",
        max_missed: int = 100,
        unique_key: str | None = None,
    ) -> str:
        """Declare periodic messages: `app.every("0 9 * * 1-5", "reports", zone="Europe/Berlin", data={"kind": "daily"})`.

        Each due time becomes one message, however many processes run the app. The clock is that of the
        database. Messages are published while a process runs that declares them. The message has the headers
        `headrace-schedule` and `headrace-due-at`.

        Args:
            every: a cron expression of five fields, a name such as `@daily`, or an interval such as "15m", whose
                multiples count from 1970-01-01 00:00 UTC.
            stream: where the messages go, a name or a typed stream. It is created at start unless it exists.
            zone: the IANA name of the time zone of a cron expression. UTC by default. The rules at the changes of the
                clocks are those of Debian's cron, see `headrace.flow.due_times`.
            name: the schedule's name, unique in the database. The stream's name by default.
            key: the key of the messages, or a function of the due time that returns it. The schedule's name by
                default.
            data: the data of the messages, or a function of the due time that returns it. Several processes may call
                a function for a due time, and the result of one of them is published. A stream with a codec
                needs a function, since the settings of a schedule are stored as they are.
            headers: more headers.
            missed: what happens to due times that passed while no process ran. `skip` publishes one message, for the
                latest of them. `catch_up` publishes one for each, the oldest first.
            max_missed: the largest number of messages that `catch_up` publishes, for the latest due times. At most
                1,000.
            unique_key: publish nothing at a due time while a message with this unique key is pending, see
                `App.publish`.

        Returns:
            The schedule's name. Raises `ConfigurationError` for settings that can't be used, or a name that is
            taken.
        """
        given = _arguments(locals())
        self._add_schedule(periodic.define(**{**given, "stream": name_of_stream(stream)}))
        return self.schedules[-1].spec.name

    def _add_schedule(self, schedule: Schedule) -> None:
        self._check_open()
        name = schedule.spec.name
        if any(name == other.spec.name for other in self.schedules):
            raise ConfigurationError(f"Two schedules are both called {name!r}: pass name=… to one of them.")
        if len(self.schedules) >= MAX_SCHEDULES:
            raise ConfigurationError(
                f"An app has at most {MAX_SCHEDULES:,} schedules. Publish messages with deliver_at=… for more."
            )
        if schedule.spec.stream in self._formats:
            schedule.check_format(self._formats[schedule.spec.stream])
        self.schedules.append(schedule)

    def consumer(
        self,
        stream: str | Stream[Any],
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
        publishes: str | Stream[Any] | None = None,
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
        """Make a function the handler of a consumer of `stream`, a name or a typed stream.

        The function takes the payload, decoded into the annotated type, a `Message`, both or
        neither. When it returns, the message is acked. When it raises, the message is delivered
        again after its backoff. A plain function runs in a thread.

        Args:
            filter: which keys to read: one filter or several, at most 100. `*` matches one token, and `>` the rest.
                Such as `orders.*.new` or `orders.us.>`.
            where: a condition that the content of these messages must meet. Text such as `"data.status
                = 'paid' and data.total > 100"`, the same as JSON, or `field("total") > 100`.
            name: the consumer's name, under which the store keeps its position. The function's name
                by default.
            concurrency: how many handlers run at a time in one process: a fixed number, or a range
                to scale in.
            max_deliver: the number of attempts before a message is exhausted. -1 for no limit.
            ack_wait: the visibility timeout. A lease expires after it unless it is extended.
            max_ack_pending: the maximum number of messages that are leased and not settled, over all
                processes.
            backoff: the delay before the next attempt, or a list with one for each attempt, of which
                the last repeats. It may also be a `Backoff`. By default it is exponential, from 1 s to
                5 minutes, with jitter.
            on_exhausted: what happens to an exhausted message. `dead_letter` makes it a dead letter,
                `block` makes it one and blocks its key until you redrive or purge it, and `drop`
                discards it.
            ordered: whether the messages of a key are delivered strictly in order.
            timeout: how long the handler may take for one message.
            deliver_policy: where a new consumer starts. `all` starts at the first message, `new` after
                the last one, `by_start_seq` at `start_seq`, and `by_start_time` at `start_time`.
                `last_per_key` delivers the last message of each key, and then new ones.
            start_seq: the seq at which a new consumer starts.
            start_time: the time at which a new consumer starts.
            transactional: run the handler inside a transaction. The ack commits together with what
                the handler writes through its `Transaction` parameter. If the lease was lost,
                nothing is committed.
            publishes: a stream. The handler's return value is published to it, together with the
                ack: (key, data) or (key, data, headers), a list of these, or None for nothing.
            batch: take up to this many messages at a time, as a `list[Order]` or a `Batch`. When
                the handler returns, all are acked except those for which it set another outcome.
            batch_timeout: how long to wait for a batch to fill, after its first message.
            group_by_key: make each batch of one key's waiting messages, in their order.
            on_batch_error: when the handler of a batch raises, "retry" retries all of it. "bisect"
                runs halves of it until the failing messages are found.
            runner: "process" for CPU-bound work, or "thread", the default of a plain function. A
                timeout can stop a process. It can't stop a thread, which is waited for.
            rate_limit: the maximum rate of deliveries, over all processes. A number of messages per
                second, or text such as "100/s" or "1000/h".
            rate_burst: the maximum number of messages that are delivered at once after a pause. It
                needs `rate_limit`. By default one second of the rate.
            key_concurrency: with `ordered=False`, how many messages of a key one process handles at
                a time.
            ack_before_next: start a key's next message only after the ack of the previous one is
                committed. A crash then repeats at most one message of a key, or one batch, instead
                of a run of them. Each message of a key costs a round trip to the database.
                Transactional handlers always work this way.
            priority: while a consumer of higher priority has waiting messages, the others in its
                process are limited to their minimum concurrency.
            breaker: the circuit breaker. It pauses when handlers fail again and again, and probes
                with single messages. True, a number of failures in a row, or a `Breaker`.
            middleware: middleware of this handler alone, the outermost first. It runs inside the
                app's. See `middleware`.

        Raises:
            ConfigurationError: an invalid setting, an annotation that can't be decoded, or a name
                that is taken.
            InvalidFilter: a filter that breaks the grammar.
        """
        given = _arguments(locals())

        def register(function: F) -> F:
            consumer = define(function, given)
            check_together(consumer)
            self._add(consumer)
            return function

        if callable(stream):
            raise ConfigurationError("Write @app.consumer('orders'): the decorator needs the stream that it reads.")
        return register

    def _add(self, consumer: Consumer) -> None:
        self._check_open()
        spec = consumer.spec
        for other in self.consumers:
            if (other.spec.stream, other.spec.name) == (spec.stream, spec.name):
                raise ConfigurationError(
                    f"Two handlers of {spec.stream!r} are both called {spec.name!r}, and would share one place in the stream:"
                    " pass name=… to one of them."
                )
        if spec.stream in self._formats:
            check_conditions(self._formats[spec.stream], spec)
        self.consumers.append(consumer)

    def middleware(self, function: Middleware) -> Middleware:
        """Run an async function around every handler: `async def timed(delivery, call_next): … await call_next()`.

        The first one that you add is the outermost. See `headrace.runtime.handlers.middleware`.
        Raises `ConfigurationError`.
        """
        self._check_open()
        self._middleware.extend(check_middleware([function]))
        return function

    def on_dead_letter(self, hook: H) -> H:
        """Run an async function for each message that becomes a dead letter: `async def alert(message, error): …`.

        It gets the `Message` and the exception of the last attempt: what the handler raised, or a `Reject`, `Retry` or
        `TimeoutError`. It runs after the dead letter is stored, at most once: not if this process dies first, nor
        for a message whose process died, or that was received over HTTP or by SQL. The hooks of a consumer
        run one after the other, 10 seconds each at most. A hook that raises is logged, and changes nothing else.
        A router's hooks run for its own consumers. Raises `ConfigurationError`.
        """
        self._check_open()
        if not callable(hook) or not is_async(hook):
            raise ConfigurationError(f"The hook {hook!r} must be an async function: async def alert(message, error): …")
        self._dead_letter_hooks.append(hook)
        return hook

    def include(self, router: Router) -> None:
        """Take over what a router declares. Its middleware runs inside the app's, around its own handlers only.

        From then on nothing can be declared on the router, since nothing would run it. Several apps may include it.

        Args:
            router: a router, with all that it declares.

        Raises:
            ConfigurationError: a consumer, capture or stream is declared twice with different settings.
        """
        if not isinstance(router, Router):
            raise ConfigurationError(f"app.include takes a headrace.Router, not {type(router).__name__}.")
        self._check_open()
        if router is self:
            raise ConfigurationError("A router can't include itself.")
        router.close()
        for name, spec in router._streams.items():
            known = self._streams.get(name)
            if spec is not None and known is not None and spec != known:
                raise ConfigurationError(f"The stream {name!r} is declared twice, with different settings.")
            self._streams[name] = known if spec is None else spec
        for stored_as in router._formats.values():
            self._add_format(stored_as)
        router.apps.append(self)
        for capture_spec in router.captures:
            self._add_capture(capture_spec)
        for schedule in router.schedules:
            self._add_schedule(schedule)
        for consumer in router.consumers:
            inner = consumer.handling.middleware
            hooks = (*router._dead_letter_hooks, *consumer.handling.dead_letter_hooks)
            handling = replace(consumer.handling, middleware=(*router._middleware, *inner), dead_letter_hooks=hooks)
            self._add(replace(consumer, handling=handling))

    def _check_open(self) -> None:
        """Raise `ConfigurationError` if nothing can be declared any more."""


class Router(Declarations):
    """Declares consumers, streams, captures and middleware without an app.

        # shop/shipping.py
        router = Router()

        @router.consumer("orders")
        async def ship(order: Order) -> None: ...

        # shop/service.py
        app = App()
        app.include(shipping.router)

    The decorators and their arguments are those of `App`. Dependencies, lifespans and checks belong to the app.
    """

    def __init__(self) -> None:
        super().__init__()
        self._closed = False
        self.apps: list[Declarations] = []

    def close(self) -> None:
        """Refuse further declarations, because the router was included."""
        self._closed = True

    def _publishes(self, stream: str) -> Publisher:
        found = [app._publishes(stream) for app in self.apps]
        if len(found) > 1:
            found = [publisher for publisher in found if publisher.open]
        if len(found) == 1:
            return found[0]
        raise ConfigurationError(
            f"The stream {stream!r} is declared on a router, and {len(self.apps) or 'no'} apps include it"
            f"{f', of which {len(found)} are connected' if self.apps else ''}: publish with app.publish({stream!r}, …)."
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError(
                "The router was included already, so this would never run. Declare it above app.include(router)."
            )


def _format(spec: StreamSpec, type: Any, codec: Codec | None, allow_plain: bool) -> StreamFormat:  # noqa: A002
    """The format of a typed stream. Raises `ConfigurationError`."""
    check_codec(codec, spec.name, allow_plain=allow_plain, dedupe=spec.dedupe)
    return StreamFormat(spec.name, type, codec, allow_plain=allow_plain, tombstones=spec.tombstones)
