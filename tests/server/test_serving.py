"""A server process from the inside. It ends on request or when its app dies, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket

import anyio
import httpx
import pytest

from headrace import App, ConfigurationError
from headrace.runtime.pipeline.shared import Shared
from headrace.server.asgi import Server
from headrace.server.serve import ServerRunner
from headrace.server.transport.listener import Address, url_of
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio


class Bug(Exception):
    pass


class Dies:
    """A component of an app that dies on request."""

    def __init__(self) -> None:
        self.now = asyncio.Event()

    async def run(self, _: Shared) -> None:
        await self.now.wait()
        raise Bug("a bug of ours")

    def drain(self) -> None: ...
    def hurry(self) -> None: ...


class Up:
    """A server in this process, and an event that is set when it accepts connections."""

    def __init__(self, app: App, **settings: object) -> None:
        self._up = asyncio.Event()
        self._listening = Address("127.0.0.1", 0).bind()
        self.url = url_of(self._listening, tls=False)
        self.serving = ServerRunner(app, Server(app), self._listening, on_listening=self._up.set, **settings)  # type: ignore[arg-type]

    async def run(self) -> None:
        try:
            await self.serving.run(signals=False)
        finally:
            self._listening.close()

    async def up(self) -> None:
        async with asyncio.timeout(20):
            await self._up.wait()


async def _is_closed(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


async def test_it_serves_until_it_is_stopped(dsn: str) -> None:
    up = Up(App(dsn))
    async with anyio.create_task_group() as group:
        group.start_soon(up.run)
        await up.up()
        assert up.serving.ready()
        async with httpx.AsyncClient(base_url=up.url) as client:
            assert (await client.get("/ready")).status_code == 200
        up.serving.stop()
        assert not up.serving.ready()
    assert await _is_closed(up.url)


async def test_the_death_of_its_app_ends_it(dsn: str) -> None:
    app, dies = App(dsn), Dies()
    app.attach(dies)
    up = Up(app)
    before = asyncio.all_tasks()
    running = asyncio.create_task(up.run())
    await up.up()
    dies.now.set()
    async with asyncio.timeout(20):
        with pytest.raises(ExceptionGroup) as caught:
            await running
    assert caught.value.subgroup(Bug)
    assert await _is_closed(up.url)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_reason_against_opening_keeps_it_from_starting(dsn: str) -> None:
    async def forbid() -> None:
        raise ConfigurationError("it must not")

    up = Up(App(dsn), before_listening=forbid)
    with pytest.raises(ConfigurationError, match="it must not"):
        await up.run()
    assert await _is_closed(up.url)


async def test_until_it_is_ready_clients_are_refused_so_that_they_go_to_another_server(dsn: str) -> None:
    refused = []

    async def look() -> None:
        refused.append(await _is_closed(up.url))

    up = Up(App(dsn), before_listening=look)
    async with anyio.create_task_group() as group:
        group.start_soon(up.run)
        await up.up()
        assert not await _is_closed(up.url)
        up.serving.stop()
    assert refused == [True]


async def test_a_request_that_does_not_end_is_cut_off_after_the_timeout(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(dsn)
    up = Up(app, shutdown_timeout=0.05)
    async with anyio.create_task_group() as group:
        group.start_soon(up.run)
        await up.up()
        host, port = up.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/streams HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        async with httpx.AsyncClient(base_url=up.url) as client:
            while "headrace_server_requests_under_way 1" not in (await client.get("/metrics")).text:
                pass
        up.serving.stop()
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
    assert logged(caplog, "requests cut off at shutdown", seconds=0.05)
    assert not any(record.exc_info for record in caplog.records)
