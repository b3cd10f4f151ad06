"""Database URLs of sources, by which a user of the API makes the server connect."""

from __future__ import annotations

import asyncio
import struct
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from headrace import App
from headrace.admin import Admin
from headrace.model.errors import HeadraceError
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import UntrustedDatabase
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.spec import PostgresSpec
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
CLEARTEXT_PASSWORD = b"R" + struct.pack("!II", 8, 3)


class Listener:
    """A program on loopback that speaks enough of Postgres's protocol to ask for a password."""

    def __init__(self) -> None:
        self.connections = 0
        self.received = b""
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack("!I", await reader.readexactly(4))
                packet = await reader.readexactly(size - 4)
                self.received += packet
                (code,) = struct.unpack("!I", packet[:4])
                if code not in (SSL_REQUEST, GSS_REQUEST):
                    break
                writer.write(b"N")
            writer.write(CLEARTEXT_PASSWORD)
            self.received += await reader.readexactly(5)
            self.received += await reader.read(1000)
        writer.close()


@pytest_asyncio.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    async with server:
        yield listener


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: Listener) -> None:
    """Secrets of the server's own user, in all places where libpq looks."""
    (tmp_path / "pgpass").write_text("*:*:*:*:sesame-file\n")
    (tmp_path / "pgpass").chmod(0o600)
    (tmp_path / "home/.postgresql").mkdir(parents=True)
    for name in ("postgresql.crt", "postgresql.key", "root.crt"):
        (tmp_path / "home/.postgresql" / name).write_text("sesame-certificate")
    (tmp_path / "services").write_text("[own]\nuser=sesame-service\npassword=sesame-service\ndbname=sesame-service\n")
    for name, value in {
        "PGPASSWORD": "sesame-password", "PGUSER": "sesame-user", "PGDATABASE": "sesame-database", "PGAPPNAME": "sesame-name",
        "PGOPTIONS": "-c sesame.option=1", "PGPASSFILE": str(tmp_path / "pgpass"), "PGSERVICEFILE": str(tmp_path / "services"),
        "PGSERVICE": "own", "HOME": str(tmp_path / "home"), "PGSSLCERT": str(tmp_path / "home/.postgresql/postgresql.crt"),
        "PGSSLKEY": str(tmp_path / "home/.postgresql/postgresql.key"), "PGHOSTADDR": "127.0.0.1", "PGPORT": str(listener.port),
        "PGSSLROOTCERT": "/nowhere", "PGREQUIREAUTH": "gss", "PGCONNECT_TIMEOUT": "x", "PGKRBSRVNAME": "sesame",
        "PGCHANNELBINDING": "require",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)


@asynccontextmanager
async def _api(dsn: str, *allow: str, capture: bool = False) -> AsyncIterator[Api]:
    app = App(dsn)
    server = Server(app, Options(capture=capture, push_allow=allow))
    async with app.running():
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Api(client, server)


def _source(url: str, name: str = "orders") -> dict[str, Any]:
    return {"kind": "postgres", "name": name, "stream": "orders", "tables": ["public.orders"], "database": url}


async def _refusal(api: Api, url: str) -> str:
    """Return what the check of a source with this URL says about the connection."""
    answer = await api.answer("POST", "/source-check", _source(url))
    if answer.status_code == 422:
        return str(answer.json()["summary"])
    [finding] = answer.json()["data"]
    assert (finding["what"], finding["level"]) == ("connection", "error")
    return str(finding["message"])


INSIDE: list[Callable[[int], str]] = [
    lambda port: f"postgresql://x:y@127.0.0.1:{port}/db", lambda port: f"postgresql://x:y@localhost:{port}/db",
    lambda port: f"postgresql://x:y@[::ffff:127.0.0.1]:{port}/db", lambda port: f"postgresql://x:y@2130706433:{port}/db",
    lambda port: f"postgresql://x:y@127.1:{port}/db", lambda port: f"postgresql://x:y@0.0.0.0:{port}/db",
    lambda port: f"postgresql://x:y@0:{port}/db", lambda port: f"postgresql://x:y@93.184.216.34:{port}/db?hostaddr=127.0.0.1",
    lambda port: f"host=example.com hostaddr=127.0.0.1 port={port} user=x dbname=db",
    lambda port: f"postgresql://x:y@127.0.0.1:{port},127.0.0.1:{port}/db", lambda port: f"postgres://x@127.0.0.1:{port}",
    lambda port: f"postgresql://x:y@%2Ftmp:{port}/db", lambda port: f"postgresql:///db?host=/tmp&user=x&port={port}",
    lambda port: f"postgresql://x:y@:{port}/db", lambda port: "postgresql:///db", lambda port: "user=x host=@abstract",
    lambda port: "postgresql://x@169.254.169.254/db", lambda port: "postgresql://x@10.0.0.1/db",
    lambda port: "postgresql://x@[fe80::1]/db", lambda port: "postgresql://x:y@,/db", lambda port: "service=own",
    lambda port: f"postgresql://x@127.0.0.1:{port}/db?service=own",
    lambda port: f"postgresql://x:y@{','.join(['127.0.0.1'] * 9)}/db", lambda port: f"postgresql://x:y@1.1.1.1,127.0.0.1:{port}/db?hostaddr=127.0.0.1,127.0.0.1",
]  # fmt: skip


async def test_a_check_reaches_no_address_that_push_may_not_reach(dsn: str, listener: Listener, secrets: None) -> None:
    async with _api(dsn) as api:
        for url in (make(listener.port) for make in INSIDE):
            told = await _refusal(api, url)
            assert any(
                words in told for words in ("may not connect", "Unix socket", "has no", "parameter", "has 9 hosts")
            ), (
                url,
                told,
            )
            assert "sesame" not in told
    assert listener.connections == 0


async def test_no_secret_of_the_server_is_sent_to_an_allowed_address(
    dsn: str, listener: Listener, secrets: None
) -> None:
    async with _api(dsn, "loopback") as api:
        for url in (
            f"postgresql://x@127.0.0.1:{listener.port}/db", f"postgresql://x@127.0.0.1:{listener.port}",
            f"host=127.0.0.1 port={listener.port} user=x sslmode=disable", f"postgresql://x:@localhost:{listener.port}/db",
        ):  # fmt: skip
            await _refusal(api, url)
    assert listener.connections > 0
    assert b"sesame" not in listener.received
    assert b"x\0" in listener.received


async def test_the_password_of_the_url_is_sent(dsn: str, listener: Listener, secrets: None) -> None:
    async with _api(dsn, "loopback") as api:
        await _refusal(api, f"postgresql://x:from-the-url@127.0.0.1:{listener.port}/db")
    assert b"from-the-url" in listener.received
    assert b"sesame" not in listener.received


FILES = [
    "sslcert=/etc/passwd", "sslkey=/etc/passwd", "sslrootcert=/etc/passwd", "sslcrl=/etc/passwd", "sslcrldir=/etc", "passfile=/etc/passwd",
    "service=own", "sslkeylogfile=/tmp/keys", "krbsrvname=x", "gsslib=gssapi", "requirepeer=root", "require_auth=gss", "require_auth=!none",
]  # fmt: skip


async def test_a_url_names_no_files_and_no_tickets_of_the_server(dsn: str, listener: Listener) -> None:
    async with _api(dsn, "loopback") as api:
        for parameter in FILES:
            told = await _refusal(api, f"postgresql://x:y@127.0.0.1:{listener.port}/db?{parameter}")
            assert parameter.partition("=")[0] in told or "can't be read" in told, told
    assert listener.connections == 0


async def test_a_source_that_was_created_over_http_is_fenced_where_it_is_captured_and_administered(
    dsn: str, listener: Listener, secrets: None
) -> None:
    async with _api(dsn, capture=True) as api:
        await api.post("/sources", _source(f"postgresql://x@127.0.0.1:{listener.port}/db"), 201)
        found = await api.get("/sources/orders")
        while found["reason"] is None:
            await asyncio.sleep(0)
            found = await api.get("/sources/orders")
        assert "may not connect" in found["reason"]
        assert "may not connect" in (await api.post("/sources/orders/check"))["data"][0]["message"]
        where = {"where": {"field": "data.record.id", "op": ">", "value": 5}}
        answer = await api.answer("POST", "/sources/orders/backfills", where)
        assert answer.status_code >= 400
        assert "may not connect" in answer.json()["summary"]
        await api.refused("DELETE", "/sources/orders", status=409)
        await api.call("PATCH", "/sources/orders", {"database": f"postgresql://x@localhost:{listener.port}/db"})
        await api.call("DELETE", "/sources/orders", force=True)
    assert listener.connections == 0


async def test_the_database_of_the_server_and_those_of_its_code_are_trusted(dsn: str) -> None:
    async with _api(dsn) as api:
        for database in (None, dsn):
            found = (await api.post("/source-check", {**_source(dsn), "database": database}))["data"]
            assert [one["what"] for one in found] != ["connection"]
    app = App(dsn)
    app.capture("public.orders", database="postgresql:///shop?host=/tmp", into="orders")
    [spec] = app.captures
    async with App(dsn) as other:
        assert other.database_of(spec) == UntrustedDatabase("postgresql:///shop?host=/tmp")
        other.captures.append(spec)
        assert other.database_of(spec) is None


async def test_an_operator_of_the_database_uses_the_environment(
    dsn: str, listener: Listener, secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGSERVICE", "PGREQUIREAUTH", "PGCONNECT_TIMEOUT", "PGSSLCERT", "PGSSLKEY", "PGCHANNELBINDING"):
        monkeypatch.delenv(name)
    app = App(dsn)
    async with app:
        await Admin(app.database).check_spec(
            PostgresSpec(name="orders", stream="orders", tables=("public.orders",), database="postgresql://x@127.0.0.1")
        )
    assert b"sesame-password" in listener.received


async def test_a_stored_source_gets_nothing_of_an_operators_environment(
    dsn: str, listener: Listener, secrets: None
) -> None:
    """Any user of the API with `admin` for all streams may have stored it."""
    stored = PostgresSpec(
        name="orders",
        stream="orders",
        tables=("public.orders",),
        database=f"postgresql://x@127.0.0.1:{listener.port}/db",
    )
    app = App(dsn)
    async with app:
        for admin in (Admin(app.database), app.admin):
            await admin.create_source(stored)
            [finding] = await admin.check_source("orders")
            assert (finding.what, finding.level) == ("connection", "error")
            with pytest.raises(HeadraceError):
                await admin.start_backfill("orders", where="data.record.id > 1")
            await admin.delete_source("orders", force=True)
    assert listener.connections > 0
    assert b"sesame" not in listener.received


async def test_commands_with_a_database_send_nothing_of_the_environment_to_the_database_of_a_source(
    dsn: str, listener: Listener, secrets: None
) -> None:
    url = f"postgresql://x@127.0.0.1:{listener.port}/db"

    async def headrace(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "headrace", *words, "--database", dsn, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        return (await process.communicate())[0].decode()

    add = ("source", "postgres", "add", "orders", "--table", "public.orders", "--from", url)
    assert "connection" in await headrace(*add)
    assert listener.connections > 0
    assert "Created" in await headrace(*add, "--no-check")
    before = listener.connections
    assert "connection" in await headrace("source", "postgres", "check", "orders")
    assert "was not deleted" in await headrace("source", "rm", "orders", "--yes")
    assert "Removed" in await headrace("source", "rm", "orders", "--yes", "--force")
    assert listener.connections > before
    assert b"sesame" not in listener.received


@pytest.mark.parametrize("refusal", [None, lambda address: None])
async def test_a_socket_is_never_for_a_users_url(server_dsn: str, refusal: Any) -> None:
    with pytest.raises(SourceStopped, match="Unix socket"):
        await SourceConnection.connect(UntrustedDatabase(server_dsn, refusal), application_name="x")
