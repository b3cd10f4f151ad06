"""The database that a pipeline is for: opened once on the driver, and kept for as long as the pipeline runs.

A pipeline is plain, synchronous code, as Spark's own interface is; what `App` does is asynchronous, so it runs in a loop of its own, in a thread
beside. The embedded Postgres stays up while it is connected, since an app is what uses it.
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
from headrace_spark.source.connection import ask, connect

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that the server has to notice that a process which was killed has gone."""

# A transaction that only holds a lock holds nothing up, and a pooler leaves it its connection. It may last as long as a pipeline; a machine that has
# vanished is noticed after a minute.
_LASTING = """
    select set_config(name, case name when 'tcp_keepalives_idle' then '30' when 'tcp_keepalives_interval' then '10'
                                      when 'tcp_keepalives_count' then '3' else '0' end, true)
      from pg_catalog.pg_settings
     where name in ('idle_in_transaction_session_timeout', 'transaction_timeout', 'tcp_keepalives_idle', 'tcp_keepalives_interval',
                    'tcp_keepalives_count')
"""


class Connected:
    """A database, while it is open.

    Attributes:
        url: where executors and the data source find it.
    """

    def __init__(self, portal: BlockingPortal, app: App) -> None:
        self._portal = portal
        self._app = app
        self.url = app.database.dsn

    def stream(self, name: str) -> StreamInfo:
        """A stream. Raises `UnknownStream`."""
        return self._do(lambda: self._app.admin.stream(name))

    def keep_consumer(self, spec: ConsumerSpec) -> None:
        """Create a consumer, unless it is there. Raises `InvalidInput` if it is there with other settings."""
        self._do(lambda: self._app.admin.create_consumer(spec))

    @contextmanager
    def alone(self, what: str) -> Iterator[bool]:
        """Around work that one process does at a time, on whatever machine: by a lock in the database.

        Args:
            what: a name for the work, the same for all that must not be done at once.

        Yields:
            Whether nobody else is at it.
        """
        with connect(self.url, autocommit=False) as connection:
            ask(connection, self.url, _LASTING)
            until = time.monotonic() + PATIENCE
            while not (got := self._locked(connection, what)) and time.monotonic() < until:
                time.sleep(0.1)
            yield got

    def _locked(self, connection: Connection, what: str) -> bool:
        found = ask(connection, self.url, "select pg_try_advisory_xact_lock(hashtextextended($1::text, 0))", what)
        return bool(found[0][0])

    def _do(self, call: Callable[[], Awaitable[T]]) -> T:
        return self._portal.call(call)


@contextmanager
def connected(database: str | None) -> Iterator[Connected]:
    """Open a database: connect, and bring its schema up to date.

    Args:
        database: a Postgres URL; None for what the settings say, or else the embedded Postgres.

    Raises:
        StoreUnavailable: it can't be reached.
    """
    app = App(database)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(app):
        yield Connected(portal, app)
