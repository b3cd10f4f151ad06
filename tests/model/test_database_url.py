"""The reader of database URLs. libpq, as psycopg has it, is the reference."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.model import database_url
from headrace.model.database_url import PARAMETERS, UrlError, read, sqlalchemy_url, write
from tests.support.provider_urls import PROVIDERS, REFUSED

psycopg = pytest.importorskip("psycopg")

PAGE = Path(__file__).parents[2] / "docs/database-url.md"


def as_libpq(url: str) -> dict[str, str]:
    found = {name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(url).items() if value}
    return {name: value for name, value in found.items() if (name, set(value)) != ("port", {","})}


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name not in REFUSED])
def test_a_url_of_a_provider_is_read_as_libpq_reads_it(provider: str) -> None:
    url, expected = PROVIDERS[provider]
    found = read(url)
    assert expected.items() <= found.items()
    if "--cluster=" not in url:  # libpq refuses a second =
        assert found == as_libpq(url)


@pytest.mark.parametrize("provider", REFUSED)
def test_what_no_client_reads_is_refused(provider: str) -> None:
    with pytest.raises(UrlError):
        read(PROVIDERS[provider][0])


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
VALUES = st.dictionaries(
    st.sampled_from(["user", "password", "dbname", "application_name", "options", "passfile"]), TEXT
)
HOSTS = st.lists(
    st.sampled_from(["a.example.com", "192.0.2.1", "2001:db8::1", "/var/run/postgresql"]), min_size=1, max_size=3
)


@given(VALUES, HOSTS)
@example({"password": "p%40#?/&+ '\\"}, ["2001:db8::1"])
def test_every_reader_reads_what_was_written(parameters: dict[str, str], hosts: list[str]) -> None:
    given = {name: value for name, value in parameters.items() if value} | {"host": ",".join(hosts)}
    url = write(given)
    assert read(url) == given
    assert as_libpq(url) == given


@given(st.text("ab:@/?#%4,=&+' \\p", max_size=16))
@example("a:b@c:5,[::1]:6/d?user=e")
@example("u@[::1%25eth0]/d")
@example("a:b?c#d@e/f")
@example("u:p@h?user=x@y")
@example("h/d?&&")
@example(" h /d")
@example(":@:@")
def test_libpq_reads_no_url_in_another_way(rest: str) -> None:
    """This reader accepts more: a second @, as in a password. And it checks ports, as libpq does when it connects."""
    url = f"postgresql://{rest}"
    try:
        expected = as_libpq(url)
    except (psycopg.Error, UnicodeDecodeError):  # the latter by psycopg, for bytes that are no UTF-8
        return
    if "@" in expected.get("host", "") + expected.get("port", "") or rest.count("@") > 2:
        return
    if all(not port or (port.isdecimal() and 0 < int(port) < 65536) for port in expected.get("port", "").split(",")):
        assert read(url) == expected
    else:
        with pytest.raises(UrlError):
            read(url)


@given(st.text("ab='\\ \t", max_size=12))
@example(r"'a\'b c'")
@example(r"a\ b")
def test_pairs_are_read_as_libpq_reads_them(value: str) -> None:
    for text in (f"user={value}", f"host=a user = {value}"):
        try:
            expected = as_libpq(text)
        except psycopg.Error:
            with pytest.raises(UrlError):
                read(text)
        else:
            assert read(text) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql+asyncpg://u:p@db.example.com/shop?ssl=require", {"user": "u", "sslmode": "require"}),
        ("postgresql+psycopg://u:p@db.example.com/shop", {"host": "db.example.com", "dbname": "shop"}),
        ("postgresql+psycopg2://u@/shop?host=/tmp", {"host": "/tmp"}),
        ("postgresql+psycopg://u@/shop?password=a+b", {"password": "a b"}),
        ("jdbc:postgresql://db.example.com:5433/shop?user=u&password=a%2Bb", {"port": "5433", "user": "u", "password": "a+b"}),
        ("jdbc:postgresql://db.example.com/shop?ssl=true", {"sslmode": "verify-full"}),
        ("POSTGRESQL://db.example.com/shop", {"host": "db.example.com"}),
        (" postgres://db.example.com/shop\n", {"dbname": "shop"}),
        ("postgresql://u:p@ss@db.example.com/shop", {"password": "p@ss", "host": "db.example.com"}),
    ],
)  # fmt: skip
def test_urls_of_other_libraries_are_read(url: str, expected: dict[str, str]) -> None:
    assert expected.items() <= read(url).items()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://h/d?connect_timout=4", "has the parameter 'connect_timout'.*Did you mean connect_timeout?"),
        ("postgresql://h/d?ApplicationName=x", "Did you mean application_name?"),
        ("jdbc:postgresql://h/d?targetServerType=primary", "Did you mean target_session_attrs?"),
        ("postgresql://h/d?database=x", "Did you mean dbname?"),
        ("postgresql://h/d?search_path=app", "'search_path'.*Leave it out. A setting of the server is written options=-c%20NAME%3DVALUE"),
        ("postgresql://h/d?pgbouncer=true", "'pgbouncer'.*Leave it out"),
        ("host=h databse=x", "Did you mean"),
        ("postgresql://h/d?sslmode=no-verify", "has sslmode='no-verify'. Use one of disable, allow, prefer, require, verify-ca, verify-full"),
        ("postgresql://h/d?target_session_attrs=master", "Use one of any, read-write"),
        ("postgresql://h/d?connect_timeout=5s", "connect_timeout='5s', which is not a number"),
        ("postgresql+psycopg://u@/d?host=a:1&host=b:2", "Write host=one,other&port=5432,5433"),
        ("mysql://u:p@h/d", "Write postgresql://user:password@host:5432/database"),
        ("http://localhost:7376", "is the URL of a server. Commands take it as --server or HEADRACE_SERVER"),
        ("shop", "can't be parsed"),
        ("", "can't be parsed"),
        ("postgresql://u:50%off@h/d", "%25 for %"),
        ("postgresql://u:p/w@h/d", "%2F for /"),
        ("postgresql://h:54a/d", "can't be parsed"),
        ("postgresql://h:65536/d", "can't be parsed"),
        ("postgresql://h/d?sslmode", "can't be parsed"),
        ("postgresql://[::1/d", "can't be parsed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_be_right(url: str, sentence: str) -> None:
    with pytest.raises(UrlError, match=sentence):
        read(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d?password=geheim&heim=1",  "host=h password=ge geheim=1", "postgresql://u:a/b?geheim=x@h/d",
        "postgresql://u:geheim:1@h:geheim/d", "host=h password=geheim port=geheim",
    ],
)  # fmt: skip
def test_no_part_of_a_password_is_named(url: str) -> None:
    with pytest.raises(UrlError) as refused:
        read(url)
    assert "heim" not in str(refused.value)


def test_every_parameter_of_libpq_is_known() -> None:
    from psycopg import pq

    known = {parameter.name: parameter for parameter in PARAMETERS}
    for option in pq.Conninfo.get_defaults():
        name = option.keyword.decode()
        assert name in known
        if known[name].variable is not None:
            assert known[name].variable == (option.envvar or b"").decode()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "asyncpg"])
@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://u:p%40%2F%3A%25%2B%20@db.example.com:5433/shop",
            {"user": "u", "password": "p@/:%+ ", "host": "db.example.com", "port": "5433", "dbname": "shop"},
        ),
        (
            "postgres://u@a.example.com,b.example.com:6/shop?target_session_attrs=primary",
            {"user": "u", "host": "a.example.com,b.example.com", "port": "5432,6", "dbname": "shop", "target_session_attrs": "primary"},
        ),
        ("postgresql://u@/shop?host=/tmp&port=5433", {"user": "u", "host": "/tmp", "port": "5433", "dbname": "shop"}),
        ("host=::1 port=5432 dbname=shop user=u", {"user": "u", "host": "::1", "port": "5432", "dbname": "shop"}),
        ("postgresql:///shop", {"dbname": "shop"}),
        (
            "postgresql://u@db.example.com/shop?sslmode=require",
            {"user": "u", "host": "db.example.com", "dbname": "shop", "sslmode": "require"},
        ),
    ],
)  # fmt: skip
def test_sqlalchemy_gives_the_driver_what_the_url_says(
    url: str, expected: dict[str, str], driver: database_url.SqlalchemyDriver
) -> None:
    from sqlalchemy.dialects.postgresql import asyncpg, psycopg, psycopg2
    from sqlalchemy.engine import make_url

    dialect = {"asyncpg": asyncpg, "psycopg": psycopg, "psycopg2": psycopg2}[driver].dialect()
    _, arguments = dialect.create_connect_args(make_url(sqlalchemy_url(url, driver)))
    names = {"database": "dbname", "ssl": "sslmode"}
    values = {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in arguments.items()
    }
    assert {names.get(name, name): value for name, value in values.items()} == expected


@pytest.mark.parametrize(
    "parameter",
    ["sslrootcert=/a", "options=-c%20a%3Db", "channel_binding=require", "hostaddr=192.0.2.1", "service=shop"],
)
def test_a_parameter_that_sqlalchemy_can_t_pass_to_asyncpg_is_refused(parameter: str) -> None:
    url = f"postgresql://u@db.example.com/shop?{parameter}"
    with pytest.raises(UrlError, match="Use the driver psycopg"):
        sqlalchemy_url(url, "asyncpg")
    assert parameter.partition("=")[0] in sqlalchemy_url(url, "psycopg")


def test_a_reader_of_the_written_url_sees_a_secret_masked() -> None:
    from headrace.model.text.masking import masked

    assert quote("geheim/1") not in masked(write({"password": "geheim/1", "host": "h", "user": "u"}))
