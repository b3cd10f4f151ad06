"""Secrets of the server's operator and of its users: the database's password, and the credentials of push consumers."""

from __future__ import annotations

import asyncio
import re
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import store
from headrace.app import settings as settings_of_process
from headrace.client.address import Server
from headrace.model.errors import HeadraceError
from headrace.model.text.masking import masked

SECRET = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="…\0"), min_size=6, max_size=30
).map(lambda text: f"Z{text}Z")  # fmt: skip
NAMES = st.sampled_from(
    ["password", "sslpassword", "PASSWORD", "pass%77ord", "oauth_client_secret", "scram_client_key"]
)
HOSTS = st.sampled_from(["db", "db:5432", "a:1,b:2", "[::1]:5432", ""])


def escaped_pair(secret: str) -> str:
    """A value of libpq's connection strings, in quotes."""
    return "'" + secret.replace("\\", "\\\\").replace("'", "\\'") + "'"


def unquoted_pair(secret: str) -> str:
    return "".join(f"\\{one}" if one.isspace() or one in "'\\" else one for one in secret)


@given(SECRET, HOSTS, st.sampled_from(["postgresql", "postgres", "http", "postgresql+asyncpg"]), st.booleans())
def test_no_password_in_front_of_the_host_survives(secret: str, hosts: str, scheme: str, encoded: bool) -> None:
    text = quote(secret, safe="") if encoded else secret
    shown = masked(f"{scheme}://ann:{text}@{hosts}/db?application_name=x")
    assert text not in shown
    assert secret not in shown


@given(SECRET, NAMES, HOSTS, st.booleans())
def test_no_password_among_the_parameters_survives(secret: str, name: str, hosts: str, first: bool) -> None:
    text = quote(secret, safe="")
    pairs = [f"{name}={text}", "user=ann"]
    for url in (f"postgresql://{hosts}/db?{'&'.join(pairs if first else pairs[::-1])}",
                f"postgresql://ann:other@{hosts}/db?{pairs[0]}"):  # fmt: skip
        assert text not in masked(url)


@given(SECRET.filter(lambda secret: "&" not in secret), HOSTS)
def test_nor_does_one_that_is_not_escaped(secret: str, hosts: str) -> None:
    assert secret not in masked(f"postgresql://{hosts}/db?user=ann&password={secret}&sslmode=require")


@given(SECRET, st.sampled_from(["password", "sslpassword", "PassWord"]), st.sampled_from(["=", " = ", "\t="]))
def test_no_password_of_a_connection_string_survives(secret: str, name: str, equals: str) -> None:
    for value in (escaped_pair(secret), unquoted_pair(secret), escaped_pair(secret)[:-1]):
        assert value not in masked(f"host=db {name}{equals}{value} user=ann")
        shown = masked(f"host=db user=ann {name}{equals}{value}")
        assert value.strip("'") not in shown
        assert shown.startswith("host=db user=ann ")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ann:geheim/n@127.0.0.1:1/db", "postgresql://ann:ge#heim@127.0.0.1:1/db", "postgresql://ann:ge?heim@127.0.0.1:1/db",
        "postgresql://ann:geheim@127.0.0.1:port/db", "postgresql://ann:geheim@127.0.0.1:1/db?sslmode=no",
        "postgresql://127.0.0.1:1/db?user=ann&password=geheim", "postgresql://127.0.0.1:1/db?user=ann&pass%77ord=geheim",
        "postgresql://127.0.0.1:1,127.0.0.1:2/db?password=geheim&target_session_attrs=primary", "ann:geheim@127.0.0.1/db",
        "host=127.0.0.1 password=geheim", "postgresql://127.0.0.1:1/db?password=geheim&sslmode=nonsense",
        "postgresql://127.0.0.1:1/db?password=geheim&target_session_attrs=nonsense", "postgresql://[::1/db?password=geheim",
    ],
)  # fmt: skip
def test_no_error_about_a_database_url_has_its_password(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(HeadraceError) as raised:
        asyncio.run(store.Database(dsn).open())
    text = "".join(traceback.format_exception(raised.value)).replace(dsn, "")
    assert not re.search("geheim|ge#|ge[?]|heim", text + caplog.text)


def test_settings_that_are_shown_have_no_secrets() -> None:
    url = "postgresql://ann@db/shop?password=geheim"
    settings = settings_of_process.read({"database": url}, environment={})
    assert settings.database == url
    for shown in (repr(settings), repr(Server("http://db:7376", "geheim"))):
        assert "geheim" not in shown
        assert "db" in shown


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://ann@db:5432/shop?sslmode=require", "postgresql://ann@db:5432/shop?sslmode=require"),
        ("postgresql://ann:word@a:1,b:2/shop", "postgresql://ann:…@a:1,b:2/shop"),
        ("postgresql://db/shop?user=ann&password=word&sslmode=require", "postgresql://db/shop?user=ann&password=…&sslmode=require"),
        ("host=db password='wo rd' dbname=shop passfile=/a/b", "host=db password=… dbname=shop passfile=/a/b"),
        ("https://word@shop.example/x", "https://…@shop.example/x"),
        ("ann:word@db/shop", "ann:…@db/shop"),
        ("host=db dbname='postgresql://ann:word@db/shop'", "host=db dbname=postgresql://ann:…@db/shop"),
        ("nonsense", "nonsense"),
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(dsn: str, shown: str) -> None:
    assert masked(dsn) == shown
