"""A server process: the running app, its API on a socket, and an orderly shutdown.

At shutdown the server accepts no more connections, answers the requests that wait for messages, and
finishes the running ones. Then the app drains what remains to settle and to push. In this order no
request is cut off, and clients find another server once their connections end.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.abc

from headrace.app.app import App
from headrace.model.log import Log
from headrace.runtime.stop_signals import log_stop, on_stop_signals
from headrace.server.asgi import Server
from headrace.server.transport.listener import Listener
from headrace.server.transport.tls import Certificate

log = Log("headrace")

Function = Callable[[], Coroutine[Any, Any, None]]


class ServerRunner:
    """Serves until it is stopped.

    Args:
        app: an app that does not run yet.
        server: its API.
        listening: a bound socket. It listens once the app runs.
        certificate: for TLS.
        shutdown_timeout: seconds that running requests may take after the stop.
        before_listening: called when the app runs and no client can connect yet. It may raise.
        on_listening: called when clients can connect.

    Attributes:
        tasks: further tasks, which begin before clients can connect, and are cancelled at the end.
    """

    def __init__(
        self,
        app: App,
        server: Server,
        listening: socket.socket,
        certificate: Certificate | None = None,
        *,
        shutdown_timeout: float = 30.0,
        before_listening: Function | None = None,
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._server = server
        self._listening = listening
        self._certificate = certificate
        self._timeout = shutdown_timeout
        self._before_listening = before_listening
        self._on_listening = on_listening
        self.tasks: list[Function] = []
        self._stopping = anyio.Event()
        self._aborting = anyio.Event()
        self._starting = anyio.CancelScope()
        self._is_open = False  # clients can connect, or could until the stop

    def ready(self) -> bool:
        """Return whether clients should connect, as far as is known without a query."""
        return self._app.readiness().ready and not self._stopping.is_set()

    async def run(self, *, signals: bool = True) -> None:
        """Serve until `stop`, or with `signals` until SIGTERM, SIGINT or SIGHUP. A second signal stops at
        once, and a third ends the process. A signal during the start stops it before clients can connect.

        Raises:
            StoreUnavailable: the database can't be reached at the start. Later outages are waited
                out.
            ExceptionGroup: the app failed unexpectedly.
        """
        handled = on_stop_signals(self._signalled, self._app.log_unfinished) if signals else nullcontext()
        with self._starting:
            async with handled, self._app.running():
                if self._before_listening is not None:
                    await self._before_listening()
                await self._serve()
                if self._aborting.is_set():
                    self._app.stop()
                    self._app.stop()

    async def _serve(self) -> None:
        tls = None if self._certificate is None else self._certificate.context
        listener = Listener(self._server, self._server.limits, tls, self._server.find_endpoint)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(listener.run)
                if self._certificate is not None:
                    group.start_soon(self._certificate.keep_current)
                for function in self.tasks:
                    group.start_soon(function)
                await listener.open([self._listening])
                self._is_open = True
                self._on_listening()
                await self._stopping.wait()
                await self._drain(listener)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await listener.abort()

    async def _drain(self, listener: Listener) -> None:
        self._server.monitoring.health.draining = True
        listener.close()
        self._server.end_waits()
        with anyio.move_on_after(self._timeout) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._cut_off, scope)
                await listener.drained()
                group.cancel_scope.cancel()
        if scope.cancelled_caught and not self._aborting.is_set():
            log.warning("requests cut off at shutdown", seconds=self._timeout, hint="raise shutdown_timeout")

    async def _cut_off(self, scope: anyio.CancelScope) -> None:
        await self._aborting.wait()
        scope.cancel()

    def stop(self) -> None:
        """Begin to drain. A second call stops immediately."""
        if self._stopping.is_set():
            self._aborting.set()
            self._app.stop()
        self._stopping.set()

    def _signalled(self, number: signal.Signals, count: int) -> None:
        log_stop(number, count, starting=not self._is_open)
        if self._is_open:
            self.stop()
        else:
            self._starting.cancel()
