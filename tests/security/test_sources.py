"""Sources as an attacker uses them: code that ends the process that runs it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import httpx
import pytest

from headrace import App
from headrace.app.background import BackgroundWorkDied
from headrace.runtime.pipeline.shared import Shared
from headrace.server.asgi import Server
from headrace.server.serve import ServerRunner
from headrace.server.transport.listener import Address
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.rules import transforms
from headrace.sources.postgres.shaping.message_builder import MessageBuilder
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges
from headrace.sources.postgres.spec import PostgresSpec
from tests.server.calling import Api
from tests.server.delivering import source
from tests.support import servers
from tests.torture.http_servers import PATIENCE, ServerProcess

HOSTILE = {
    "leaves": "raise SystemExit(0)",
    "interrupts": "raise KeyboardInterrupt",
    "odd": "class Odd(BaseException): pass\nraise Odd('no')",
    "closed": "raise GeneratorExit",
    "cancelled": "import asyncio\nraise asyncio.CancelledError",
    "recursive": "def f(): f()\nf()",
    "unprintable": "class Odd(Exception):\n    def __str__(self): raise SystemExit(1)\nraise Odd",
}
"""Statements that a module or a function may run, by the name of a source."""

ALLOWED = [word for name in (*HOSTILE, "exits", "hangs") for word in ("--transforms", name)]
"""Options that let sources name these modules over HTTP."""

HANG = "import threading\nthreading.Event().wait()"


class Site:
    """A server process with the table `orders` in its database, and modules that it can import."""

    def __init__(self, server: ServerProcess, dsn: str, directory: Path) -> None:
        self.server = server
        self.dsn = dsn
        self._directory = directory
        self.client = httpx.Client(base_url=server.url, timeout=PATIENCE)

    def module(self, name: str, statements: str, *, at_import: bool = True) -> None:
        indented = "\n".join(f"    {line}" for line in statements.splitlines())
        function = f"import headrace\n\n@headrace.transform\ndef run(message):\n{indented}\n"
        (self._directory / f"{name}.py").write_text(statements if at_import else function)

    def source(self, name: str, transform: str | None) -> None:
        body = {"kind": "postgres", "name": name, "stream": name, "tables": ["public.orders"], "transform": transform}
        answer = self.client.post("/v1/sources", json=body)
        assert answer.status_code == 201, answer.text

    def read(self, path: str) -> dict[str, Any]:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def until(self, path: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read a path until the answer has a property, and return the answer."""
        end = time.monotonic() + PATIENCE
        while not holds(found := self.read(path)):
            assert time.monotonic() < end, (path, found, self.server.last_words())
            time.sleep(0.02)
        return found


@pytest.fixture
def site(server_dsn: str, template: str, tmp_path: Path) -> Iterator[Site]:
    with servers.clone(server_dsn, template) as dsn:
        servers.run(_execute(dsn, "create table orders (id int primary key)"))
        server = ServerProcess(dsn, tmp_path / "server.log", *ALLOWED)
        server.start()
        site = Site(server, dsn, tmp_path)
        try:
            yield site
            for source in site.read("/v1/sources")["data"]:  # their slots, too
                assert site.client.delete(f"/v1/sources/{source['name']}").status_code == 200
        finally:
            site.client.close()
            assert server.stop() == 0, server.last_words()


async def _execute(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


def test_a_source_whose_code_ends_the_process_stops_alone(site: Site) -> None:
    for name, statements in {**HOSTILE, "hangs": HANG}.items():
        site.module(name, statements)
        site.source(name, f"{name}:run")
    site.module("exits", HOSTILE["leaves"], at_import=False)
    site.source("exits", "exits:run")
    site.source("fine", None)
    for name in HOSTILE:
        stopped = site.until(f"/v1/sources/{name}", lambda found: found["reason"] is not None)
        assert "can't be imported" in stopped["reason"]
    servers.run(_execute(site.dsn, "insert into orders values (1)"))
    messages = site.until("/v1/streams/fine/messages", lambda found: found["data"] != [])["data"]
    assert messages[0]["data"]["record"] == {"id": 1}
    failures = site.until("/v1/sources/exits/failures", lambda found: found["data"] != [])["data"]
    assert failures[0]["error"] == "SystemExit: 0"
    assert site.client.delete("/v1/sources/leaves").status_code == 200
    assert site.read("/health") == {"status": "ok"}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A program that handles SIGINT itself, as `headrace serve` does."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("statements", HOSTILE.values(), ids=HOSTILE)
def test_a_transform_that_raises_anything_costs_one_message(statements: str, interruptible: None) -> None:
    def run(message: object) -> None:
        exec(statements, {})

    spec = PostgresSpec(name="orders", stream="orders", tables=("public.orders",), transform="shop:run")
    builder, changes = MessageBuilder(spec, run), ShapedChanges()
    assert builder.add("orders.1", b'{"record":{"id":1},"metadata":{}}', changes) == 1
    assert (changes.keys, len(changes.failures)) == ([], 1)


@pytest.mark.asyncio
async def test_an_import_that_never_ends_is_given_up_and_takes_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_shop.py").write_text("import threading\ngo = threading.go_on\ngo.wait()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(threading, "go_on", threading.Event(), raising=False)
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(SourceStopped, match="has not ended after"):
            await transforms.load_in_thread("hanging_shop:run", 0.01)
    assert threading.active_count() == before + 1
    threading.go_on.set()  # type: ignore[attr-defined]
    with pytest.raises(SourceStopped, match="has no run"):
        await transforms.load_in_thread("hanging_shop:run", 30)
    del sys.modules["hanging_shop"]


class _Exits:
    """A part of the app that raises once the server listens."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.listening = anyio.Event()

    async def run(self, shared: Shared) -> None:
        await self.listening.wait()
        raise self._error

    def drain(self) -> None: ...

    def hurry(self) -> None: ...


class _Odd(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [BaseExceptionGroup("", [SystemExit(0)]), _Odd(), GeneratorExit()], ids=["exit", "odd", "closed"]
)
@pytest.mark.asyncio
async def test_a_server_whose_app_has_died_ends_with_an_error(dsn: str, error: BaseException) -> None:
    app = App(dsn)
    server = Server(app)
    app.attach(part := _Exits(error))
    runner = ServerRunner(app, server, Address("127.0.0.1", 0).bind(), on_listening=part.listening.set)
    with pytest.raises((BackgroundWorkDied, ExceptionGroup)) as raised:  # a `SystemExit(0)` would report a success
        await runner.run(signals=False)
    assert "The app died from" in str(_leaves(raised.value))


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


@pytest.mark.asyncio
async def test_a_server_that_is_not_connected_answers_503(dsn: str) -> None:
    server = Server(App(dsn))
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/v1/streams", "/api/streams", "/v1/sources/x", "/v1/tokens", "/v1/live/snapshot"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), (path, answer.text)
            assert answer.headers["retry-after"]
        for path in ("/v1/streams/x/messages", "/v1/webhook/x", "/v1/sources", "/v1/streams/x/consumers/y/receive"):
            answer = await client.post(path, json={})
            assert answer.status_code == 503, (path, answer.text)


@pytest.mark.asyncio
async def test_a_source_can_not_take_the_id_of_another_as_its_name(api: Api) -> None:
    await api.stream()
    victim = await source(api, "victim")
    for name in (victim["id"], victim["stream_id"], "00000000-0000-0000-0000-000000000000"):
        for settings in ({"kind": "webhook"}, {"kind": "postgres", "tables": ["public.orders"]}):
            body = {**settings, "name": name, "stream": "orders"}
            assert "looks like an id" in (await api.refused("POST", "/sources", body, status=422))["summary"]
    assert [one["name"] for one in (await api.get("/sources"))["data"]] == ["victim"]
    twin = await source(api, "twin")
    await api.server.app.database.fetchval(
        "update headrace_internal.sources set name = $1 where name = 'twin'", victim["id"]
    )
    assert (await api.get(f"/sources/{victim['id']}"))["name"] == "victim"
    assert (await api.call("PATCH", f"/sources/{victim['id']}", {"max_body": 5}))["name"] == "victim"
    assert (await api.call("DELETE", f"/sources/{victim['id']}"))["id"] == victim["id"]
    assert [one["id"] for one in (await api.get("/sources"))["data"]] == [twin["id"]]
