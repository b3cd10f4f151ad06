"""The application: what a user writes his handlers on."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from headrace import store
from headrace.app.admin import Admin
from headrace.app.consumer import Consumer, define
from headrace.app.service import Service
from headrace.embedded import EmbeddedPostgres, Tenancy
from headrace.model import payloads
from headrace.model.conditions import Condition
from headrace.model.durations import Duration, seconds, when
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_key
from headrace.model.specs import Backoff, DeliverPolicy, OnExhausted, Retention, StreamSpec
from headrace.store.translate import translated

logger = logging.getLogger("headrace")

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """An application: streams, and the consumers that work on them.

    Args:
        dsn: a Postgres URL. None takes the environment's `HEADRACE_DATABASE`, or else the embedded Postgres.
        streams: streams to create at start, unless they exist. A consumer's stream need not be named here.
        max_connections: the most connections of this process, besides one that listens.
        shutdown_timeout: how long handlers may take to finish when the application stops.
        data_dir: where the embedded Postgres keeps its data; None for the project's `.headrace`, or the user's.

    Connect with `async with app:`, run with `headrace run module:app`, or embed it: `async with app.running():`.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        streams: Iterable[str] = (),
        max_connections: int = 10,
        shutdown_timeout: Duration = "30s",
        data_dir: Path | str | None = None,
    ) -> None:
        if not 2 <= max_connections <= 1000:
            raise ConfigurationError(f"max_connections={max_connections} must be from 2 to 1000.")
        if isinstance(streams, str):
            raise ConfigurationError(f"streams={streams!r} must be a list, such as [{streams!r}].")
        self.dsn = dsn
        self.consumers: list[Consumer] = []
        self._streams: dict[str, StreamSpec | None] = dict.fromkeys(streams)
        self._max_connections = max_connections
        self._shutdown_timeout = seconds(shutdown_timeout, "shutdown_timeout")
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._database: store.Database | None = None
        self._tenancy: Tenancy | None = None
        self._users = 0
        self._entrance = anyio.Lock()
        self._service: Service | None = None

    # --- what is declared

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

        Raises:
            ConfigurationError: a setting that can't be, an annotation that can't be decoded, a name that is taken.
            InvalidFilter: a filter that breaks the grammar.
        """

        def register(function: F) -> F:
            consumer = define(
                function, stream, filter=filter, where=where, name=name, deliver_policy=deliver_policy,
                start_seq=start_seq, start_time=start_time, concurrency=concurrency, max_deliver=max_deliver,
                ack_wait=ack_wait, max_ack_pending=max_ack_pending, backoff=backoff, on_exhausted=on_exhausted,
                ordered=ordered, timeout=timeout,
            )  # fmt: skip
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

    # --- publishing

    async def publish(
        self, stream: str, key: str, data: Any, *, headers: Mapping[str, Any] | None = None,
        message_id: str | None = None, delay: Duration | None = None, deliver_at: datetime | None = None,
        connection: store.Executor | None = None,
    ) -> int | None:  # fmt: skip
        """Append a message.

        Args:
            stream: an existing stream.
            key: tokens parted by dots, such as `orders.us.42`. Messages of one key are handled in order.
            data: anything that msgspec can write as JSON.
            headers: names and JSON values that travel along.
            message_id: publishing the same id again, within the stream's `dedupe_window`, changes nothing.
            delay: publish it after so long; or, with `deliver_at`, at a time. It has its place in the stream from then on.
            connection: an asyncpg connection of yours, inside a transaction: the message is there if that commits.

        Returns:
            The message's seq: of the first time if it was published before; None if it is for later.

        Raises:
            UnknownStream: there is none of that name; publishing creates nothing.
            InvalidInput: a key, data or headers that can't be stored; `InvalidKey` and `InvalidData` say which.
            StreamFull: the stream holds its `max_storage`, and nothing may go; try again later.
            StoreUnavailable: it may or may not have been published.
        """
        due = when(delay, deliver_at)
        text, header_text = payloads.encode(data), payloads.encode_headers(headers)
        check_key(key)
        with self._translated(connection):
            seq = await store.publish(
                connection or self.database, stream, key, text, header_text, message_id=message_id, deliver_at=due
            )
        self._published(stream, due)
        return seq

    async def publish_many(
        self, stream: str, messages: Iterable[tuple[Any, ...]], *, message_ids: Sequence[str | None] | None = None,
        delay: Duration | None = None, deliver_at: datetime | None = None, connection: store.Executor | None = None,
    ) -> int:  # fmt: skip
        """Append messages in their order, all or none: (key, data) or (key, data, headers) tuples.

        Args:
            message_ids: an id, or None, for each; see `publish`, for the rest too.

        Returns:
            How many were published, or are for later: without those whose id is known, and those that `dedupe` found unchanged.
            Raises as `publish` does.
        """
        due = when(delay, deliver_at)
        keys, data, headers = payloads.parallel(messages)
        if message_ids is not None and len(message_ids) != len(keys):
            raise InvalidInput(
                f"There are {len(keys)} messages and {len(message_ids)} message_ids: give one, or None, for each."
            )
        more: dict[str, Any] = {"message_ids": message_ids, "deliver_at": None if due is None else [due] * len(keys)}
        try:
            if connection is not None:
                with self._translated(connection):
                    count = await store.publish_many(connection, stream, keys, data, headers, **more)
            else:
                count = await store.publish_all(self.database, stream, keys, data, headers, **more)
        except InvalidInput:
            for key in keys:  # the store can't say which one it was
                check_key(key)
            raise
        self._published(stream, due)
        return count

    def _translated(self, connection: store.Executor | None) -> AbstractContextManager[None]:
        """Errors of a user's own connection are as our own's. It need not be to this app's database, nor the app connected."""
        return nullcontext() if connection is None else translated("the given connection")

    def _published(self, stream: str, due: datetime | None) -> None:
        if self._service is not None:
            self._service.published(stream)
            if due is not None:
                self._service.scheduled()

    # --- running

    @property
    def admin(self) -> Admin:
        """See and mend streams and consumers, while connected. Raises `ConfigurationError` otherwise."""
        return Admin(self.database)

    @property
    def database(self) -> store.Database:
        """The database, while connected. Raises `ConfigurationError` otherwise."""
        if self._database is None:
            raise ConfigurationError("The app is not connected: use it inside `async with app:`, or while it runs.")
        return self._database

    async def __aenter__(self) -> App:
        """Connect: start the embedded Postgres if need be, bring the schema up to date, create declared streams."""
        async with self._entrance:  # who comes while another connects waits for that
            if self._users == 0:
                try:
                    await self._connect()
                except BaseException:
                    await self._disconnect()
                    raise
            self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._users == 0:
            await self._disconnect()

    async def _connect(self) -> None:
        dsn = self.dsn or os.environ.get("HEADRACE_DATABASE")
        if not dsn:
            self._tenancy = await anyio.to_thread.run_sync(EmbeddedPostgres(self._data_dir).acquire)
            dsn = self._tenancy.url
        self._database = store.Database(dsn, max_connections=self._max_connections)
        await self._database.open()
        for step in await store.migrate(self._database):
            logger.info("schema: %s", step)
        for name, spec in self._streams.items():
            await store.create_stream(self._database, spec or name)
            if spec is not None:
                await store.edit_stream(self._database, spec)

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            database, self._database = self._database, None
            tenancy, self._tenancy = self._tenancy, None
            if database is not None:
                await database.close()
            if tenancy is not None:
                await anyio.to_thread.run_sync(tenancy.release)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        """Connected, and with the consumers at work in the background; at the end of the block they drain."""
        failure = None
        async with self, self._serving() as service:
            async with anyio.create_task_group() as group:
                group.start_soon(service.run)
                try:
                    yield self
                except Exception as error:  # the caller's: it must not cut short what handlers are doing
                    failure = error
                finally:
                    service.drain()
            if failure is not None:
                raise failure

    async def run(self, *, signals: bool = True) -> None:
        """Run the consumers until `stop`, or until SIGTERM or SIGINT when `signals`; drain; a second signal stops at once.

        Raises:
            ConfigurationError: there is no consumer.
        """
        if not self.consumers:
            raise ConfigurationError("The app has no consumer: decorate a function with @app.consumer('a-stream').")
        async with self, self._serving() as service, anyio.create_task_group() as group:
            if signals:
                group.start_soon(self._obey_signals)
            await service.run()
            group.cancel_scope.cancel()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[Service]:
        if self._service is not None:
            raise ConfigurationError("The app is already running in this process.")
        self._service = service = Service(self.database, self.consumers, self._shutdown_timeout)
        try:
            await service.prepare()
            yield service
        finally:
            self._service = None

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            count = 0
            async for number in received:
                count += 1
                name = signal.Signals(number).name
                logger.info("%s: %s", name, "draining; again to stop at once" if count == 1 else "stopping at once")
                self.stop()

    def stop(self) -> None:
        """Begin to drain; a second time, stop the handlers that still run. Their messages are given back."""
        if self._service is not None:
            self._service.stop()

    async def idle(self) -> None:
        """Wait until no consumer of this process has anything left to lease, in work, to settle, or to retry."""
        if self._service is None:
            raise ConfigurationError("The app is not running: use this inside `async with app.running():`.")
        await self._service.idle()

    def statistics(self) -> dict[str, Any]:
        """Counts and states of the consumers of this process, and of its connections; empty when it does not run."""
        return {} if self._service is None else self._service.statistics()
