"""The application class, on which you declare handlers."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.to_thread

from headrace import store
from headrace.admin import Admin
from headrace.app import capture, settings
from headrace.app.attached import Attached
from headrace.app.background import in_background
from headrace.app.declared import Declared
from headrace.app.limits import SERVICE_LIMITS
from headrace.app.periodic.runner import Periodic
from headrace.app.publishing import Publishing
from headrace.app.readiness import NOT_RUNNING, Readiness
from headrace.app.service import Service
from headrace.embedded import EmbeddedPostgres, ServerHandle
from headrace.model.clock import SYSTEM_TIME
from headrace.model.database_url import SqlalchemyDriver, UrlError, sqlalchemy_url
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError, ConsumersDeleted, NotConnected
from headrace.model.log import Log
from headrace.model.text.masking import masked
from headrace.runtime.calls import Witness
from headrace.runtime.handlers.dependencies import Dependencies
from headrace.runtime.leasing.subscriptions import Subscriptions
from headrace.runtime.loop_watch import LoopWatch
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.pipeline.shared import Shared
from headrace.runtime.pipeline.timings import Timings
from headrace.runtime.stop_signals import log_stop, on_stop_signals
from headrace.sources.postgres.connection.untrusted import Refusal, SourceDatabase, UntrustedDatabase
from headrace.sources.postgres.spec import PostgresSpec
from headrace.telemetry import Telemetry

if TYPE_CHECKING:
    from headrace.telemetry.instrumentation import Instrumentation

log = Log("headrace")


class App(Declared, Publishing):
    """An application: its streams, consumers and dependencies.

    Args:
        dsn: a Postgres URL. None takes the environment's `HEADRACE_DATABASE`, or else the embedded
            Postgres.
        streams: streams to create at start, unless they exist. A consumer's stream need not be
            listed here.
        max_connections: maximum number of database connections of this process, apart from the one
            that listens for notifications. 10 by default.
        shutdown_timeout: how long handlers may take to finish when the application stops. 30 s by
            default.
        data_dir: data directory of the embedded Postgres. None takes the project's `.headrace`, or
            else the user's.
        telemetry: OpenTelemetry traces and metrics: a `Telemetry`, "otlp", "prometheus", or True
            for the providers that your program has set up. Off by default.
        migrate: whether to create or upgrade the schema at start. True by default. False raises
            `SchemaError` if the schema is older than this code.

    You can set what you leave out here in the environment or in pyproject.toml. See
    `headrace.app.settings`.
    Connect with `async with app:`, run with `headrace run module:app`, or embed it with
    `async with app.running():`.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        streams: Iterable[str] = (),
        max_connections: int | None = None,
        shutdown_timeout: Duration | None = None,
        data_dir: Path | str | None = None,
        telemetry: Telemetry | str | bool | None = None,
        migrate: bool | None = None,
    ) -> None:
        if isinstance(streams, str):
            raise ConfigurationError(f"streams={streams!r} is a string. Pass a list, such as [{streams!r}].")
        super().__init__(tuple(streams))
        self.dsn = dsn
        self.migrate = migrate
        self._arguments = {"max_connections": max_connections, "shutdown_timeout": shutdown_timeout, "data": data_dir}
        settings.check({"migrate": migrate, **self._arguments})
        self._settings = settings.DEFAULTS  # until it connects
        Telemetry.of(telemetry)  # raises immediately if the value is invalid
        self.telemetry = telemetry
        self._instruments: Instrumentation | None = None
        self._database: store.Database | None = None
        self._server_handle: ServerHandle | None = None
        self._users = 0
        self._connect_lock = anyio.Lock()
        self._attached: list[Attached] = []
        self._service: Service | None = None
        self._time = SYSTEM_TIME
        self._timings = Timings()
        self._limits = SERVICE_LIMITS
        self._witness: Witness | None = None
        self._publisher = Publisher(lambda: self.database, self._published, lambda: self._time.date(), self._formats)

    @property
    def admin(self) -> Admin:
        """Operations on streams and consumers, while connected. Raises `ConfigurationError` otherwise."""
        return Admin(self.database, stored_database=self.database_of)

    @property
    def database(self) -> store.Database:
        """The database, while connected. Raises `ConfigurationError` otherwise."""
        if self._database is None:
            raise NotConnected("The app is not connected. Use it inside `async with app:`, or while it runs.")
        return self._database

    def sqlalchemy_url(self, driver: SqlalchemyDriver = "psycopg") -> str:
        """Return the URL of the app's database for SQLAlchemy, with its password: `create_engine(app.sqlalchemy_url())`.

        It follows from the same setting, so that a service needs only `HEADRACE_DATABASE`.

        Args:
            driver: "psycopg", "psycopg2" or "asyncpg".

        Raises:
            NotConnected: the database is the embedded Postgres, which runs while the app is connected.
            ConfigurationError: the URL is wrong, or SQLAlchemy can't pass a parameter of it to this driver.
        """
        dsn = (
            self._database.dsn if self._database is not None else settings.read({"database": self.dsn or None}).database
        )
        if dsn is None:
            raise NotConnected("The embedded Postgres has a URL while the app is connected. Use `async with app:`.")
        try:
            return sqlalchemy_url(dsn, driver)
        except UrlError as error:
            raise ConfigurationError(f"The database URL {masked(dsn)!r} {error}") from None

    async def __aenter__(self) -> App:
        """Connect: start the embedded Postgres if needed, upgrade the schema, create the declared streams."""
        async with self._connect_lock:  # a concurrent caller waits until the first one has connected
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

    def _publishes(self, stream: str) -> Publisher:
        return self._publisher

    async def _connect(self) -> None:
        self._check_formats()
        self._settings = found = settings.read(
            {"database": self.dsn or None, "migrate": self.migrate, **self._arguments}
        )
        for name, suggestion in settings.unknown_variables():
            hint = None if suggestion is None else f"did you mean {suggestion}?"
            log.warning("unknown variable in the environment", variable=name, hint=hint)
        telemetry = Telemetry.of(found.telemetry if self.telemetry is None else self.telemetry)
        if telemetry is not None:
            from headrace.telemetry.starting import start  # not imported while telemetry is off

            self._instruments = self._publisher.instruments = start(telemetry, self.statistics)
        dsn = found.database
        if dsn is None:
            self._server_handle = await anyio.to_thread.run_sync(EmbeddedPostgres(found.data).acquire)
            dsn = self._server_handle.url
        self._database = store.Database(dsn, max_connections=found.max_connections)
        await self._database.open()
        if found.migrate:
            if steps := await store.migrate(self._database):
                log.info("schema updated", steps=", ".join(steps))
        else:
            await store.require_current_schema(self._database)
        await capture.make_streams(self._database, self.captures)  # first, since row streams need their own settings
        for name, spec in self._streams.items():
            await store.create_stream(self._database, spec or name)
            if spec is not None:
                await store.edit_stream(self._database, spec)
        await store.warm_up(self._database)

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            database, self._database = self._database, None
            handle, self._server_handle = self._server_handle, None
            instruments, self._instruments, self._publisher.instruments = self._instruments, None, None
            if database is not None:
                await database.close()
            if handle is not None:
                await anyio.to_thread.run_sync(handle.release)
            if instruments is not None:
                await instruments.stop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        """Connect and run the consumers in the background. They drain at the end of the block.

        Signals and logging are left alone. The end of the block may run in another task than its
        start, as in some web frameworks' lifespans. If the block is cancelled, unfinished messages
        are released.

        Raises:
            ConfigurationError: the app is already running.
            StoreUnavailable: the database can't be reached at the start. Later outages are retried.
            ExceptionGroup: a consumer failed because of a bug. The task that entered the block is
                cancelled.
        """

        async def serve(started: Callable[[], None]) -> None:
            async with self, self._serving() as service:
                started()
                await service.run()

        def end() -> None:
            if self._service is not None:
                self._service.drain()

        def hurry() -> None:
            end()
            self.stop()

        async with in_background(serve, end, hurry):
            yield self

    async def run(self, *, signals: bool = True, on_running: Callable[[], object] = lambda: None) -> None:
        """Run the consumers until `stop`, or until SIGTERM, SIGINT or SIGHUP if `signals` is set, then drain.

        A second signal stops the handlers immediately. A third one ends the process, also if a handler hangs, and the log names
        what still ran. A signal during the start stops that.

        Args:
            signals: whether to handle signals.
            on_running: called once, before the consumers start. The database is connected then, and the lifespans have begun.

        Raises:
            ConfigurationError: the app has no consumer.
            ConsumersDeleted: all consumers were deleted while the app ran, and it captures nothing.
                Run it again to declare them again.
        """
        if not self.consumers and not self.captures and not self.schedules:
            raise ConfigurationError("The app has no consumer. Decorate a function with @app.consumer('a-stream').")
        consumers_deleted = is_running = False
        starting = anyio.CancelScope()

        def stop(number: signal.Signals, count: int) -> None:
            log_stop(number, count, starting=not is_running)
            if is_running:
                self.stop()
            else:
                starting.cancel()

        def drain_if_idle() -> None:
            nonlocal consumers_deleted
            if not service.draining and not self.captures and not self.schedules:
                consumers_deleted = True
                service.drain()

        handled = on_stop_signals(stop, self.log_unfinished) if signals else nullcontext()
        with starting:
            async with handled, self, self._serving() as service:
                log.info("app running", database=masked(self.database.dsn))
                service.on_all_deleted = drain_if_idle
                on_running()
                is_running = True
                await service.run()
        if consumers_deleted:
            raise ConsumersDeleted(
                "All consumers of this process were deleted while it ran, so it has stopped. Start it again to declare them again."
            )

    async def preflight(self) -> None:
        """Check that the app can run here: start everything except the consumers, then stop it again.

        The startup checks run last.

        Raises:
            ConfigurationError: a check failed, a dependency can't be provided, or the app is
                already running.
            StoreUnavailable: the database can't be reached.
            Errors of a lifespan or of a dependency's provider are raised unchanged.
        """
        async with self, self._with_resources():
            pass

    @asynccontextmanager
    async def _with_resources(self) -> AsyncIterator[Dependencies]:
        if self._resources.lifespans.running:
            raise ConfigurationError("The app is already running in this process.")
        async with self._resources.open_all(self, self.consumers, teardown=self._timings.teardown) as dependencies:
            yield dependencies

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[Service]:
        async with self._with_resources() as dependencies:
            attached = (*self._attached, *self._capturing(), *self._periodic())
            self._service = service = Service(
                self.consumers,
                self._shared(dependencies),
                attached,
                self.captures,
                self._limits,
                self._formats,
                self.schedules,
            )
            try:
                await service.prepare()
                yield service
            finally:
                if self._instruments is not None:  # before the service is dropped, while there are statistics to export
                    with anyio.CancelScope(shield=True):
                        await self._instruments.flush()
                self._service = None

    def _shared(self, dependencies: Dependencies) -> Shared:
        return Shared(
            database=self.database,
            publisher=self._publisher,
            subscriptions=Subscriptions(
                self.database, self.database.max_connections, self._time.clock, self._timings.leasing
            ),
            shutdown_timeout=self._settings.shutdown_timeout,
            dependencies=dependencies,
            middleware=tuple(self._middleware),
            dead_letter_hooks=tuple(self._dead_letter_hooks),
            instruments=self._instruments,
            time=self._time,
            witness=self._witness,
            loop_watch=LoopWatch(self.database.dsn, self._timings.watch) if self._witness is None else None,
            timings=self._timings,
        )

    def _capturing(self) -> Sequence[Attached]:
        """The part that captures the app's own tables, if it declares any."""
        if not self.captures or self._witness is not None:
            return ()
        from headrace.sources.postgres.capture.capturing import Capturing  # imported here because it loads many modules

        if any(isinstance(one, Capturing) for one in self._attached):  # it captures every source already
            return ()
        return (Capturing([spec.name for spec in self.captures], database_of=self.database_of),)

    def _periodic(self) -> Sequence[Attached]:
        """The part that publishes periodic messages, if the app declares any. The test kit publishes none by itself."""
        return (Periodic(self.schedules),) if self.schedules and self._witness is None else ()

    def database_of(self, spec: PostgresSpec, refusal: Refusal | None = None) -> SourceDatabase | None:
        """Return the database of a source whose URL may come from a user of the API: it is neither
        declared by this app, nor that of the app. Otherwise None.

        Args:
            spec: the settings of the source.
            refusal: returns why an address may not be connected to. None allows all.
        """
        declared = {one.database for one in self.captures}
        if spec.database is None or spec.database in declared or spec.database == self.database.dsn:
            return None
        return UntrustedDatabase(spec.database, refusal)

    def _published(self, stream: str, due: datetime | None) -> None:
        if self._service is not None:
            self._service.published(stream)
            if due is not None:
                self._service.scheduled()

    def stop(self) -> None:
        """Drain. The second call stops the handlers that still run, and their messages are released."""
        if self._service is not None:
            self._service.stop()

    def log_unfinished(self) -> None:
        """Log the handlers that still run, before the process ends anyway."""
        if self._service is not None:
            self._service.log_unfinished()

    def attach(self, attached: Attached) -> None:
        """Run `attached` beside the consumers, from the next start on."""
        self._attached.append(attached)

    async def idle(self) -> None:
        """Wait until no consumer of this process has anything to lease, handle, settle or retry. Raises
        `ConfigurationError` in a handler, which would wait for itself, and unless the app is running."""
        if self._service is None:
            raise ConfigurationError("The app is not running. Use this inside `async with app.running():`.")
        self.database.check_loop()
        await self._service.idle()

    def readiness(self) -> Readiness:
        """Whether this process does its work, and if not, why. For a probe: it makes no query and does not wait."""
        return NOT_RUNNING if self._service is None else self._service.readiness()

    def statistics(self) -> dict[str, Any]:
        """Counters and states of this process's consumers and connections. Empty while it does not run."""
        return {} if self._service is None else self._service.statistics()
