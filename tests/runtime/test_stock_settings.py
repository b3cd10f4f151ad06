"""A server with stock settings and `jit` on: no statement of a worker is expensive enough to be
compiled.

The embedded server can't compile, so this needs another installation with LLVM.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from headrace import App, Message, Retry, store, sweep
from headrace.embedded import EmbeddedPostgres
from headrace.embedded.binaries import OLDEST_MAJOR
from tests.runtime.running import Seen, running
from tests.support import clusters, servers

pytestmark = pytest.mark.asyncio

STOCK = {"jit": "on", "shared_buffers": "128MB", "autovacuum_naptime": "1min"}
TELLING = {
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "session_preload_libraries": "auto_explain",
}
COMPILED = re.compile(r"^\s*JIT:", re.MULTILINE)


def _installation() -> Path | None:
    for directory in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        libraries = directory.parent / "lib"
        if int(directory.parent.name) >= OLDEST_MAJOR and all(
            (libraries / f"{name}.so").exists() for name in ("llvmjit", "auto_explain")
        ):
            return directory
    return None


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    found = _installation()
    if found is None:
        pytest.skip("STOCK SETTINGS ARE NOT TESTED HERE: no PostgreSQL with LLVM in /usr/lib/postgresql")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HEADRACE_PG_BIN", str(found))
        with clusters.cluster(tmp_path_factory.mktemp("stock") / "postgres", **STOCK) as postgres:
            yield postgres


@pytest_asyncio.fixture
async def dsn(stock: EmbeddedPostgres) -> AsyncIterator[str]:
    """A fresh database in which the server logs each statement that has run."""
    name = "headrace_stock"
    url = stock.url().replace("/headrace?", f"/{name}?")
    administrator = await asyncpg.connect(stock.url())
    try:
        await administrator.execute(f"drop database if exists {name} with (force)")
        await administrator.execute(f"create database {name}")
        async with servers.opened(url) as database:
            await store.migrate(database)
        for setting, value in TELLING.items():
            await administrator.execute(f"alter database {name} set {setting} = {value}")
        yield url
    finally:
        await administrator.close()


def said(stock: EmbeddedPostgres) -> str:
    return stock.status().log.read_text(errors="replace")


@pytest.mark.process
async def test_the_server_compiles_an_expensive_statement(stock: EmbeddedPostgres, dsn: str) -> None:
    """This proves that the other test can fail."""
    before = len(said(stock))
    connection = await asyncpg.connect(dsn)
    await connection.execute("create table dear (n int); set enable_seqscan = off; select sum(n) from dear where n > 0")
    await connection.close()
    assert COMPILED.search(said(stock)[before:])


@pytest.mark.process
async def test_no_statement_of_a_worker_is_compiled(stock: EmbeddedPostgres, dsn: str) -> None:
    before = len(said(stock))
    app, seen = App(dsn), Seen()

    @app.consumer("orders", filter="eu.>", max_deliver=2, backoff=["1ms"], on_exhausted="block")
    async def ship(message: Message) -> Retry | None:
        seen.note(message.seq)
        if message.seq % 10 == 0:
            raise ValueError("no")
        return Retry(after="1ms") if message.attempt == 1 and message.seq % 10 == 1 else None

    @app.consumer("orders", where="data.n > 3", transactional=True, ordered=False)
    async def bill(order: dict[str, int]) -> None: ...

    async with running(app):
        await app.publish_many("orders", [(f"eu.{n % 7}", {"n": n}) for n in range(300)])
        await app.publish("orders", "eu.1", {"n": 1}, message_id="once")
        await app.publish("orders", "eu.2", {"n": 2}, delay="10ms")
        await app.idle()
        await sweep(app.database)
        admin = app.admin
        await admin.snapshot()
        await admin.consumers()
        for look in (admin.peek, admin.blocked_keys, admin.dead_letters):
            await look("orders", "ship")
        await admin.seek("orders", "bill", "start")
        await app.idle()
    assert seen.notes
    told = said(stock)[before:]
    assert told.count("Query Text:") > 500
    assert not COMPILED.search(told), _compiled_statements(told)


def _compiled_statements(told: str) -> list[str]:
    return [text[:2000] for text in told.split("LOG:  duration:") if COMPILED.search(text)]
