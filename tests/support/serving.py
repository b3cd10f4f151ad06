"""An HTTP server on its own socket, in a thread of this process, for clients that block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace import App
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.server.serve import ServerRunner

PATIENCE = 60.0
"""Timeout of the server's start and of its end in seconds."""


@contextmanager
def serving(dsn: str, options: Options | None = None) -> Iterator[str]:
    """Yield the URL of a server for a database."""
    listening = socket.create_server(("127.0.0.1", 0))
    up = threading.Event()
    made: list[tuple[asyncio.AbstractEventLoop, ServerRunner]] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        app = App(dsn)
        server = ServerRunner(app, Server(app, options), listening, on_listening=up.set)
        made.append((asyncio.get_running_loop(), server))
        await server.run(signals=False)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
            up.set()

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        assert up.wait(PATIENCE), "the server doesn't start"
        if failed:
            raise failed[0]
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        for loop, server in made:
            if not loop.is_closed():
                loop.call_soon_threadsafe(server.stop)
        thread.join(PATIENCE)
        listening.close()
        assert not thread.is_alive(), "the server doesn't end"
    if failed:
        raise failed[0]
