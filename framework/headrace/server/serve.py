"""A server process: the running app, its API on a socket, and an orderly shutdown.

At shutdown the server accepts no more connections, answers the requests that wait for messages, and
finishes the running ones. Then the app drains what remains to settle and to push. In this order no
request is cut off, and clients find another server once their connections end.
"""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import anyio.abc

from headrace.app.app import App
from headrace.server.asgi import Server
from headrace.server.transport.listener import Listener
from headrace.server.transport.tls import Certificate

logger = logging.getLogger("headrace")

Function = Callable[[], Coroutine[Any, Any, None]]


class Serving:
    """Serves until it is stopped.

    Args:
        app: an app that does not run yet.
        server: its API.
        listening: a bound socket. It listens once the app runs.
        certificate: for TLS.
        shutdown_timeout: seconds that running requests may take after the stop.
        before: called when the app runs and no client can connect yet. It may raise.
        up: called when clients can connect.
        beside: further tasks, which are cancelled at the end.
    """

    def __init__(
        self, app: App, server: Server, listening: socket.socket, certificate: Certificate | None = None, *,
        shutdown_timeout: float = 30.0, before: Function | None = None, up: Callable[[], None] = lambda: None,
        beside: Sequence[Function] = (),
    ) -> None:  # fmt: skip
        self._app = app
        self._server = server
        self._listening = listening
        self._certificate = certificate
        self._timeout = shutdown_timeout
        self._before = before
        self._tell_up = up
        self._beside = beside
        self._stopping = anyio.Event()
        self._hurrying = anyio.Event()

    def ready(self) -> bool:
        """Return whether clients should connect, as far as is known without a query."""
        return self._app.readiness().ready and not self._stopping.is_set()

    async def run(self, *, signals: bool = True) -> None:
        """Serve until `stop`, or with `signals` until SIGTERM or SIGINT. A second signal stops at
        once.

        Raises:
            StoreUnavailable: the database can't be reached at the start. Later outages are waited
                out.
            ExceptionGroup: the app failed unexpectedly.
        """
        async with anyio.create_task_group() as outer:
            if signals:
                outer.start_soon(self._obey_signals)
            async with self._app.running():
                if self._before is not None:
                    await self._before()
                await self._serve()
                if self._hurrying.is_set():
                    self._app.stop()
                    self._app.stop()
            outer.cancel_scope.cancel()

    async def _serve(self) -> None:
        tls = None if self._certificate is None else self._certificate.context
        listener = Listener(self._server, self._server.limits, tls)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(listener.run)
                if self._certificate is not None:
                    group.start_soon(self._certificate.keep)
                for function in self._beside:
                    group.start_soon(function)
                await listener.open([self._listening])
                self._tell_up()
                await self._stopping.wait()
                await self._drain(listener)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await listener.abort()

    async def _drain(self, listener: Listener) -> None:
        self._server.monitoring.health.draining = True
        listener.close()
        self._server.engine.hush()
        with anyio.move_on_after(self._timeout) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._hurry, scope)
                await listener.drained()
                group.cancel_scope.cancel()
        if scope.cancelled_caught and not self._hurrying.is_set():
            logger.warning("requests were still under way after %g s, and are cut off", self._timeout)

    async def _hurry(self, scope: anyio.CancelScope) -> None:
        await self._hurrying.wait()
        scope.cancel()

    def stop(self) -> None:
        """Begin to drain. A second call stops at once."""
        if self._stopping.is_set():
            self._hurrying.set()
            self._app.stop()
        self._stopping.set()

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async for number in received:
                how = "stopping at once" if self._stopping.is_set() else "draining; again to stop at once"
                logger.info("%s: %s", signal.Signals(number).name, how)
                self.stop()
