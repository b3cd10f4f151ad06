"""The database that a pipeline is for: opened once on the driver, and kept for as long as the pipeline runs.

A pipeline is plain, synchronous code, as Spark's own interface is; what `App` does is asynchronous, so it runs in a loop of its own, in a thread
beside. The embedded Postgres stays up while it is connected, since an app is what uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from headrace import App
from headrace.model.records import StreamInfo
from headrace.model.specs import ConsumerSpec

T = TypeVar("T")


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
