"""The database connection of a pipeline, opened once on the driver and kept while the pipeline runs.

A pipeline is plain synchronous code, like Spark's own interface. `App` is asynchronous, so it runs
in an event loop in a separate thread. The embedded Postgres keeps running while it is connected,
since an app uses it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from headrace import App
from headrace.model.records import StreamInfo
from headrace.model.specs import ConsumerSpec
from headrace_spark.lake.files import CantKeepFiles
from headrace_spark.source.connection import LONG_TRANSACTION, connect, fetch

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

T = TypeVar("T")

LOCK_TIMEOUT = 5.0
"""Seconds that the server gets to notice that a killed process is gone."""

_KEEPALIVE = """
    select set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
           set_config('tcp_keepalives_count', '3', true)
"""


class Database:
    """An open database.

    Attributes:
        url: the URL for executors and the data source.
    """

    def __init__(self, portal: BlockingPortal, app: App) -> None:
        self._portal = portal
        self._app = app
        self.url = app.database.dsn

    def stream(self, name: str) -> StreamInfo:
        """Return a stream. Raises `UnknownStream`."""
        return self._call(lambda: self._app.admin.stream(name))

    def create_stream(self, name: str) -> None:
        """Create a stream. Raises `ConfigurationError` if the database's role may not."""
        self._call(lambda: self._app.admin.create_stream(name))

    def delete_stream(self, name: str) -> None:
        """Delete a stream with all of its messages."""
        self._call(lambda: self._app.admin.delete_stream(name, force=True))

    def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Create a consumer unless it exists. Raises `InvalidInput` if it exists with other settings."""
        self._call(lambda: self._app.admin.create_consumer(spec))

    @contextmanager
    def exclusive_lock(self, lock_name: str) -> Iterator[bool]:
        """Hold a lock in the database, so that only one process at a time does the work, on any machine.

        Args:
            lock_name: the name of the lock. Work that must not run at the same time uses the same name.

        Yields:
            Whether the lock was obtained.
        """
        with connect(self.url, autocommit=False) as connection:
            # A transaction that only holds a lock blocks nothing else, and a pooler leaves it its connection. It may last as
            # long as a pipeline. A machine that has vanished is noticed after a minute.
            fetch(connection, self.url, LONG_TRANSACTION)
            fetch(connection, self.url, _KEEPALIVE)
            deadline = time.monotonic() + LOCK_TIMEOUT
            while not (locked := self._try_lock(connection, lock_name)) and time.monotonic() < deadline:
                time.sleep(0.1)
            yield locked

    @contextmanager
    def sole_use(self, purpose: str, id: str, root: str) -> Iterator[None]:  # noqa: A002
        """Hold the lock of a pipeline's directory. Raises `CantKeepFiles` if another process holds it.

        Args:
            purpose: the name of the pipeline.
            id: the directory's id.
            root: the directory, for the message.
        """
        with self.exclusive_lock(f"headrace {purpose} {id}") as locked:
            if not locked:
                raise CantKeepFiles(
                    f"Another process runs this {purpose}, with the checkpoint {root!r}. Run one at a time."
                )
            yield

    def _try_lock(self, connection: Connection, lock_name: str) -> bool:
        found = fetch(
            connection, self.url, "select pg_try_advisory_xact_lock(hashtextextended($1::text, 0))", lock_name
        )
        return bool(found[0][0])

    def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._portal.call(call)


@contextmanager
def open_database(database: str | None) -> Iterator[Database]:
    """Connect to a database, and migrate its schema.

    Args:
        database: a Postgres URL. None uses the settings, or else the embedded Postgres.

    Raises:
        StoreUnavailable: the database can't be reached.
    """
    app = App(database)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(app):
        yield Database(portal, app)
