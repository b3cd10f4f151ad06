"""Connections by the URLs that people have, with both drivers: asyncpg for the store, libpq for captures.

The servers of providers are played by the one of the tests, with TLS in front of it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.database_url import PARAMETERS, read, write
from headrace.model.errors import ConfigurationError, DatabaseRefused, NotConnected, StoreUnavailable
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceStopped
from headrace.store.connections.driver_parameters import DriverParameters
from tests.conftest import Connect
from tests.support.provider_urls import PROVIDERS, REFUSED
from tests.support.silence import proxied
from tests.support.tls import Certificates, certificates, tls_in_front

pytestmark = pytest.mark.asyncio

NAME = "db.example.com"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    names = {host for url, _ in PROVIDERS.values() for host in url.replace("/", ":").replace("@", ":").split(":")}
    hosts = [host for name in names for host in name.split(",") if host.endswith(".example.com")]
    return certificates(tmp_path_factory.mktemp("tls"), sorted({*hosts, NAME}))


@pytest_asyncio.fixture
async def port(server_dsn: str, made: Certificates, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a proxy with TLS, which every name of a host leads to, and every address that is not of this machine."""
    resolve = socket.getaddrinfo

    def here(host: Any, *args: Any, **options: Any) -> Any:
        return resolve("127.0.0.1", *args, **options)

    async with tls_in_front(server_dsn, made) as port:
        monkeypatch.setattr(socket, "getaddrinfo", here)
        yield port


@pytest.fixture
def trusted(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests' authority one of the system's."""
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))


def here(url: str, server_dsn: str, port: int, made: Certificates, **changed: str) -> str:
    """The URL with the account and the port of the server of the tests, and all else as it was."""
    given, server = read(url.replace("AUTHORITY", quote(str(made.authority)))), read(server_dsn)
    account = {name: server.get(name, "") for name in ("user", "password", "dbname")}
    host = given.get("host", "")
    if host.startswith("/"):
        account |= {name: server[name] for name in ("host", "port") if name in server}
    else:  # addresses of others are not connected to
        account |= {"port": str(port), "host": re.sub(r"[\d.]{7,}|[\da-f]*:[\da-f:]+", NAME, host)}
    if given.get("sslmode") == "verify-full" and "sslrootcert" not in given:
        account["sslrootcert"] = str(made.authority)  # one that lies at ~/.postgresql/root.crt
    return write({name: value for name, value in (given | account | changed).items() if value})


def providers() -> list[str]:
    return [name for name in PROVIDERS if name not in REFUSED]


@pytest.mark.parametrize("provider", providers())
async def test_the_store_connects_by_the_url_of_a_provider(
    provider: str, server_dsn: str, port: int, made: Certificates, trusted: None
) -> None:
    url, _ = PROVIDERS[provider]
    url = here(url, server_dsn, port, made, options="")  # the options are for proxies of the provider
    connection = await store.Database(url).connect()
    try:
        assert await connection.fetchval("select 1") == 1
        if "sslmode=require" in url or "sslmode=verify" in url:
            assert connection._transport.get_extra_info("ssl_object") is not None
    finally:
        connection.terminate()


@pytest.mark.parametrize("provider", providers())
async def test_captures_connect_by_the_url_of_a_provider(
    provider: str, server_dsn: str, port: int, made: Certificates, trusted: None
) -> None:
    # The server itself has no TLS to which libpq could bind.
    url = here(PROVIDERS[provider][0], server_dsn, port, made, channel_binding="", options="")
    async with await SourceConnection.connect(url, application_name="tests") as connection:
        assert await connection.query("select 1") == [("1",)]


# --- TLS


async def test_channel_binding_is_replaced_by_the_verification_of_the_certificate(
    server_dsn: str, port: int, made: Certificates, trusted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = here(f"postgresql://{NAME}/?sslmode=require&channel_binding=require", server_dsn, port, made)
    connection = await store.Database(url).connect()
    tls = connection._transport.get_extra_info("ssl_object")
    assert (tls.context.check_hostname, tls.server_hostname) == (True, NAME)
    connection.terminate()
    # A server in between has no certificate of this name, or none of a known authority.
    for changed in (url.replace(NAME, "other.example.org"), url + "&sslrootcert=UNKNOWN"):
        other = certificates(tmp_path, ["x.example.com"]).authority
        with pytest.raises(StoreUnavailable, match=r"certificate .* can't be verified.*sslrootcert"):
            await store.Database(changed.replace("UNKNOWN", quote(str(other)))).open()
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with pytest.raises(StoreUnavailable, match="can't be verified"):
        await store.Database(url).open()
    # Without the parameter, `require` encrypts and does not verify, as for psql.
    connection = await store.Database(url.replace("&channel_binding=require", "")).connect()
    connection.terminate()


@pytest.mark.parametrize("mode", ["", "&sslmode=prefer", "&sslmode=allow", "&sslmode=require"])
async def test_channel_binding_never_falls_back_to_no_tls(server_dsn: str, mode: str) -> None:
    async with proxied(server_dsn) as proxy:  # the server of the tests has no TLS
        url = proxy.url()
        with pytest.raises(StoreUnavailable, match="rejected SSL upgrade"):
            await store.Database(f"{url}{'&' if '?' in url else '?'}channel_binding=require{mode}").open()
    for place in (
        f"postgresql://{NAME}/?sslmode=disable",
        "postgresql:///?host=/tmp",
        "postgresql://a,%2Ftmp/?sslmode=require",
    ):
        with pytest.raises(DatabaseRefused, match="channel_binding=require without TLS"):
            store.Database(f"{place}&channel_binding=require")


async def test_the_certificates_of_the_system_verify_a_server(
    server_dsn: str, port: int, made: Certificates, trusted: None
) -> None:
    for mode in ("&sslmode=verify-full", ""):
        url = here(f"postgresql://{NAME}/?sslrootcert=system{mode}", server_dsn, port, made)
        connection = await store.Database(url).connect()
        assert connection._transport.get_extra_info("ssl_object").context.check_hostname
        connection.terminate()
    with pytest.raises(StoreUnavailable, match="can't be verified"):
        await store.Database(url.replace(NAME, "other.example.org")).open()
    with pytest.raises(DatabaseRefused, match="Use sslmode=verify-full"):
        store.Database(f"postgresql://{NAME}/?sslrootcert=system&sslmode=require")


async def test_a_file_of_tls_that_is_missing_is_named(made: Certificates) -> None:
    for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        with pytest.raises(DatabaseRefused, match=f"has {name}='/nowhere/x.pem', where there is no file"):
            store.Database(f"postgresql://{NAME}/?{name}=/nowhere/x.pem")


async def test_verified_tls_needs_a_root_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatabaseRefused, match=r"can't be used: root certificate file .* Correct its parameters of TLS"):
        await store.Database("postgresql://127.0.0.1:1/?sslmode=verify-full").open()


# --- parameters that asyncpg can't honour


@pytest.mark.parametrize(
    ("parameter", "sentence"),
    [
        ("gssencmode=require", "has gssencmode=require, which .* can't honour. Encrypt by TLS"),
        ("require_auth=scram-sha-256", "has require_auth, which .* can't honour.*sslmode=verify-full"),
        ("require_auth=!password&sslmode=require", "has require_auth"),
        ("require_auth=none&sslmode=verify-full&host=/tmp", "has require_auth"),
        ("requirepeer=postgres", "has requirepeer"),
        ("sslcrldir=/tmp", "has sslcrldir, .* Name one file"),
        ("sslcertmode=require", "has sslcertmode=require"),
        ("min_protocol_version=3.2", "has min_protocol_version=3.2"),
        ("replication=database", "has replication"),
        ("oauth_issuer=https://id.example.com", "has oauth_issuer.*no OAuth"),
        ("scram_client_key=abc", "has scram_client_key"),
        (
            "hostaddr=192.0.2.1&sslmode=verify-full",
            "has host and hostaddr with sslmode=verify-full. Leave hostaddr out",
        ),
        ("host=a,b&hostaddr=192.0.2.1", "has 2 hosts"),
        ("host=a..b", "can't be parsed"),
        ("host=%40abstract", "has a host in the abstract namespace"),
        ("host=a,b&port=1,2,3", "has 2 hosts and 3 ports"),
        ("service=nowhere", "has service='nowhere', which is not in .*Add .nowhere. there"),
    ],
)
async def test_a_parameter_that_can_t_be_honoured_is_refused(
    parameter: str, sentence: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatabaseRefused, match=f"^The database URL '.*' {sentence}"):
        store.Database(f"postgresql://ann@{NAME}/shop?{parameter}")


@pytest.mark.parametrize("root", ["", "&sslrootcert=system"])
async def test_a_certificate_that_may_not_be_sent_is_left_out(root: str, made: Certificates) -> None:
    certificate = f"sslcert={made.authority}&sslkey={made.authority}"
    url = f"postgresql://ann@{NAME}/shop?sslcertmode=disable&{certificate}{root}"
    for environment in ({}, {"PGSSLCERT": str(made.authority)}) if root else ({},):
        arguments = DriverParameters(url, environment).arguments()
        assert "sslcert" not in arguments.get("dsn", "")
    if not root:
        assert "sslcert=" in DriverParameters(url.replace("disable", "allow"), {}).arguments()["dsn"]


@pytest.mark.parametrize("port", ["abc", "70000", "5432,x"])
async def test_a_port_of_the_environment_that_is_none_is_named_with_its_variable(port: str) -> None:
    with pytest.raises(DatabaseRefused, match=f"is completed by PGPORT='{port}'. Give a number from 1 to 65535."):
        DriverParameters("postgresql://shop@localhost/shop", {"PGPORT": port})
    DriverParameters("postgresql://shop@localhost:5432/shop", {"PGPORT": port})


@pytest.mark.parametrize("environment", [{"PGSSLCERT": "/shop.crt"}, {}])
async def test_a_certificate_that_asyncpg_finds_by_itself_is_refused_where_none_may_be_sent(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql" / "postgresql.crt").write_text("a certificate")
    url = f"postgresql://ann@{NAME}/shop?sslcertmode=disable"
    with pytest.raises(
        DatabaseRefused, match=r"would send the certificate of (PGSSLCERT|.*postgresql\.crt)\. Remove that"
    ):
        DriverParameters(url, environment)
    DriverParameters(f"{url}&sslmode=disable", environment)


async def test_an_unknown_parameter_is_refused_before_a_connection(server_dsn: str) -> None:
    url = f"{server_dsn}{'&' if '?' in server_dsn else '?'}conect_timeout=4"
    with pytest.raises(DatabaseRefused, match=r"'conect_timeout'.*Did you mean connect_timeout\?"):
        store.Database(url)
    with pytest.raises(SourceStopped, match="The source's database URL has the parameter 'conect_timeout'"):
        await SourceConnection.connect(url, application_name="tests")


async def test_with_a_verified_server_its_way_of_authentication_is_accepted(
    server_dsn: str, port: int, made: Certificates
) -> None:
    url = f"postgresql://{NAME}/?require_auth=none&sslmode=verify-full&sslrootcert=AUTHORITY"
    connection = await store.Database(here(url, server_dsn, port, made)).connect()
    connection.terminate()


@pytest.mark.parametrize("parameter", [row.name for row in PARAMETERS if row.effect.startswith("ignored")])
async def test_what_is_ignored_is_not_sent_to_the_server(parameter: str, empty_dsn: str) -> None:
    values = {"client_encoding": "LATIN1", "application_name": "x", "max_protocol_version": "3.2"}
    url = write(read(empty_dsn) | {parameter: values.get(parameter, "1")})
    database = store.Database(url)
    await database.open()
    try:
        assert await database.fetchval("select current_setting('client_encoding')") == "UTF8"
        assert await database.fetchval("select current_setting('application_name')") == "headrace"
    finally:
        await database.close()


# --- places


async def test_a_service_is_read_from_its_file(
    server_dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [f"{name}={value}" for name, value in read(server_dsn).items()]
    file = tmp_path / "services.conf"
    file.write_text(
        "\n".join(["# ours", "[other]", "host=x", "[shop]", *lines, "options=-c work_mem=7MB", "connect_timeout=7"])
    )
    for url in ("postgresql://?service=shop", "service=shop", f"service=shop servicefile={file}"):
        if "servicefile" in url:
            monkeypatch.delenv("PGSERVICEFILE")
        else:
            monkeypatch.setenv("PGSERVICEFILE", str(file))
        database = store.Database(url)
        assert database.connect_timeout == 7.0
        connection = await database.connect()
        assert await connection.fetchval("select current_setting('work_mem')") == "7MB"
        connection.terminate()
    # The URL takes precedence, and a percent sign stays as it is.
    file.write_text("[shop]\nhost=a.example.com\npassword=50%off\n")
    found = DriverParameters(f"postgresql://b.example.com/?service=shop&servicefile={file}")
    assert found.addresses.all == [("b.example.com", 5432)]
    assert found.arguments()["password"] == "50%off"


async def test_an_address_is_used_in_the_place_of_a_lookup(
    server_dsn: str, port: int, made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = here(f"postgresql://{NAME}/?hostaddr=127.0.0.1&sslmode=require", server_dsn, port, made)
    asked = []
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **more: asked.append(host) or resolve(host, *args, **more)
    )
    connection = await store.Database(url).connect()
    connection.terminate()
    assert NAME not in asked


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@a:1,b:2/d", [("a", 1), ("b", 2)]),
        ("postgresql://a,b/d", [("a", 5432), ("b", 5432)]),
        ("postgresql:///d?host=a,/tmp/b&port=1,2", [("a", 1), ("/tmp/b", 2)]),
        ("postgresql:///d?host=a,b&port=7", [("a", 7), ("b", 7)]),
        ("postgresql://u@[::1]:5,h/d", [("::1", 5), ("h", 5432)]),
        ("postgresql://h:5,[::1]/d", [("h", 5), ("::1", 5432)]),
        ("postgresql:///d?host=::1", [("::1", 5432)]),
        ("postgresql://u%40x:p@a/d", [("a", 5432)]),
        ("postgresql://u:p#?@a/d", [("a", 5432)]),
        ("postgresql:///d?hostaddr=192.0.2.1,192.0.2.2&host=a,b", [("192.0.2.1", 5432), ("192.0.2.2", 5432)]),
        ("postgresql:///d?hostaddr=,192.0.2.2&host=a,b", [("a", 5432), ("192.0.2.2", 5432)]),
        (f"postgresql:///d?host=/{'long' * 20}/sockets", [(f"/{'long' * 20}/sockets", 5432)]),
        ("postgresql:///d", []),
    ],
)
async def test_the_addresses_of_a_url(
    url: str, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT"):
        monkeypatch.delenv(name, raising=False)
    assert DriverParameters(url).addresses.all == expected
    if not expected:
        monkeypatch.setenv("PGHOST", "x,y")
        monkeypatch.setenv("PGPORT", "7")
        assert DriverParameters(url).addresses.all == [("x", 7), ("y", 7)]


async def test_hosts_are_shuffled_if_the_load_is_balanced() -> None:
    tried: list[str] = []

    async def attempt(host: str, **_: Any) -> str:
        tried.append(host)
        return host

    for url, hosts in (
        ("postgresql://a,b,c/?load_balance_hosts=random", {"a", "b", "c"}),
        ("postgresql://a,b,c/", {"a"}),
    ):
        tried.clear()
        for _ in range(100):
            await DriverParameters(url).addresses.connect(attempt, 1.0)
        assert set(tried) == hosts


@pytest.mark.parametrize(
    ("given", "seconds"), [("15", 15.0), ("0", 10.0), ("-1", 10.0), ("1", 2.0), ("999999", 600.0), ("", 10.0)]
)
async def test_the_connect_timeout_is_that_of_the_url(given: str, seconds: float) -> None:
    assert store.Database(f"postgresql://{NAME}/?connect_timeout={given}").connect_timeout == seconds
    assert store.Database(f"postgresql://{NAME}/?connect_timeout={given}", connect_timeout=3.0).connect_timeout == 3.0


@pytest.mark.parametrize("written", ["-c {}={}", "-c{}={}", "--{}={}", "-c work_mem=5MB  -c {}={}"])
async def test_settings_in_the_options_take_precedence(empty_dsn: str, written: str) -> None:
    options = written.format("idle_session_timeout", "77s")
    for name in ("idle_session_timeout", "idle-session-timeout") if "--" in written else ("idle_session_timeout",):
        url = write(read(empty_dsn) | {"options": options.replace("idle_session_timeout", name)})
        database = store.Database(url)
        await database.open()
        try:
            assert await database.fetchval("select current_setting('idle_session_timeout')") == "77s"
            assert await database.fetchval("select current_setting('standard_conforming_strings')") == "on"
        finally:
            await database.close()


@pytest.mark.parametrize("strings", ["on", "off"])
async def test_transactions_of_headrace_keep_their_isolation(dsn: str, connect: Connect, strings: str) -> None:
    if strings == "off" and (await connect()).get_server_version().major >= 19:
        pytest.skip("standard_conforming_strings can't be off from PostgreSQL 19 on")
    options = f"-c default_transaction_isolation=serializable -c standard_conforming_strings={strings}"
    async with App(write(read(dsn) | {"options": options})) as app:
        assert await app.database.fetchval("select current_setting('transaction_isolation')") == "read committed"
        async with app.transaction() as transaction:  # those of your code have the level that you chose
            assert await transaction.fetchval("select current_setting('transaction_isolation')") == "serializable"


# --- one setting for several libraries


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2"])
async def test_a_url_of_sqlalchemy_is_understood(empty_dsn: str, scheme: str) -> None:
    url = empty_dsn.replace("postgresql", scheme, 1)
    async with App(url, migrate=True):
        pass


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemy_connects_by_the_url_of_an_app(empty_dsn: str, driver: Any) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(App(empty_dsn).sqlalchemy_url(driver))
    async with engine.connect() as connection:
        assert (await connection.execute(text("select current_database()"))).scalar() == read(empty_dsn)["dbname"]
    await engine.dispose()


async def test_an_app_has_a_url_for_sqlalchemy_once_it_has_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_DATABASE", raising=False)
    with pytest.raises(NotConnected, match="async with app:"):
        App().sqlalchemy_url()
    monkeypatch.setenv("HEADRACE_DATABASE", f"postgres://ann@{NAME}/shop?sslmode=require")
    assert App().sqlalchemy_url() == f"postgresql+psycopg://ann@{NAME}/shop?sslmode=require"
    assert App().sqlalchemy_url("asyncpg") == f"postgresql+asyncpg://ann@{NAME}/shop?ssl=require"
    with pytest.raises(ConfigurationError, match=r"has sslrootcert, .*Use the driver psycopg"):
        App(f"postgresql://{NAME}/shop?sslrootcert=system").sqlalchemy_url("asyncpg")


async def test_asyncpg_has_the_arguments_that_the_table_names() -> None:
    import inspect

    arguments = inspect.signature(asyncpg.connect).parameters
    assert {row.argument for row in PARAMETERS if row.argument} <= set(arguments)
