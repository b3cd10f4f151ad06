"""A connection to the captured database: its results, and its errors when there is no answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio

from headrace.model.errors import ConfigurationError
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceRefused, SourceStopped, SourceUnavailable
from tests.runtime.running import eventually
from tests.sources.postgres.connections import (
    APPLICATION,
    connected,
    parts,
    refusing,
    server_that,
    silent,
    with_options,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    async with connected(empty_dsn) as connection:
        yield connection


# --- statements


async def test_values_come_back_as_text(connection: SourceConnection) -> None:
    assert await connection.query("select 1, null, 'é', $1::text || '!', $2::text", "ü", None) == [
        ("1", None, "é", "ü!", None)
    ]


async def test_rows_come_back_as_bytes(connection: SourceConnection) -> None:
    rows = await connection.rows("select g, null, 'é' from generate_series(1, 10000) as g")
    assert rows[0] == [b"1", None, "é".encode()]
    assert len(rows) == 10_000


async def test_several_statements_return_the_rows_of_the_last_one(connection: SourceConnection) -> None:
    assert await connection.query("create table t (id int); insert into t values (1), (2); select count(*) from t") == [
        ("2",)
    ]
    assert await connection.query("insert into t values (3)") == []


async def test_text_is_made_in_one_way_whatever_the_session_is_set_to(empty_dsn: str) -> None:
    odd = with_options(
        empty_dsn, datestyle="German", timezone="Asia/Tokyo", bytea_output="escape", intervalstyle="sql_standard"
    )
    async with await SourceConnection.connect(odd, application_name=APPLICATION) as connection:
        [row] = await connection.query(
            r"select '2024-02-03 04:05:06+00'::timestamptz, '\x00ff'::bytea, '1 year 2 months'::interval, 0.1::float8"
        )
    assert row == ("2024-02-03 04:05:06+00", "\\x00ff", "P1Y2M", "0.1")


@pytest.mark.parametrize("replication", [False, True])
async def test_time_limits_that_are_meant_for_other_work_do_not_hold(empty_dsn: str, replication: bool) -> None:
    hasty = with_options(empty_dsn, statement_timeout="5000", lock_timeout="3000", idle_session_timeout="5000")
    async with await SourceConnection.connect(
        hasty, application_name=APPLICATION, replication=replication
    ) as connection:
        [row] = await connection.query(
            "select current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('idle_session_timeout')"
        )
    assert row == ("0", "0", "0")


async def test_a_refused_statement_is_reported_and_the_connection_stays_usable(connection: SourceConnection) -> None:
    with pytest.raises(
        SourceRefused, match='The captured server refused the statement: relation "nowhere" does not exist'
    ) as refused:
        await connection.query("select * from nowhere")
    assert refused.value.sqlstate == "42P01"
    with pytest.raises(SourceRefused) as refused:
        await connection.query("select lower(id) from (values (1)) as t(id)")
    assert refused.value.hint is not None
    assert await connection.query("select 1") == [("1",)]


async def test_tasks_that_share_a_link_take_turns(connection: SourceConnection) -> None:
    found: list[str | None] = []

    async def ask(number: int) -> None:
        ((answer,),) = await connection.query("select $1::int from pg_sleep(0.001)", str(number))
        assert answer == str(number)
        found.append(answer)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, number)
    assert sorted(int(answer or 0) for answer in found) == list(range(20))


async def test_a_cancelled_statement_ends_on_the_server_too_and_with_it_the_link(
    connection: SourceConnection, empty_dsn: str
) -> None:
    async with await SourceConnection.connect(empty_dsn, application_name="impatient") as other:

        async def sleeps() -> bool:
            at_work = """select from pg_stat_activity
                where datname = current_database() and application_name = 'impatient' and wait_event = 'PgSleep'"""
            return bool(await connection.query(at_work))

        async def is_gone() -> bool:
            return not await connection.query(
                "select from pg_stat_activity where datname = current_database() and application_name = 'impatient'"
            )

        async with anyio.create_task_group() as group:
            group.start_soon(other.query, "select pg_sleep(600)")
            await eventually(sleeps)
            group.cancel_scope.cancel()
        with pytest.raises(SourceUnavailable, match="is closed"):
            await other.query("select 1")
        await eventually(is_gone)


async def test_a_pending_query_fails_when_the_link_is_closed(connection: SourceConnection) -> None:
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            with pytest.raises(SourceUnavailable):
                await connection.query("select pg_sleep(600)")

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        await connection.close()


async def test_a_connection_that_the_server_ends_is_unavailable(connection: SourceConnection, empty_dsn: str) -> None:
    async with await SourceConnection.connect(empty_dsn, application_name="doomed") as other:
        await connection.query(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'doomed'"
        )
        with pytest.raises(SourceUnavailable):
            await other.query("select 1")
        with pytest.raises(SourceUnavailable):
            await other.query("select 1")


async def test_it_works_under_uvloop(empty_dsn: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def ask() -> list[tuple[str | None, ...]]:
        async with await SourceConnection.connect(empty_dsn, application_name=APPLICATION) as connection:
            return await connection.query("select repeat('x', 1000000) from generate_series(1, 3)")

    found = await asyncio.to_thread(uvloop.run, ask())
    assert [len(value or "") for (value,) in found] == [1_000_000] * 3


# --- connecting


async def test_an_unknown_database_or_role_is_to_be_mended(empty_dsn: str) -> None:
    for wrong in ({"dbname": "no_such_database"}, {"user": "no_such_role"}):
        with pytest.raises(SourceStopped, match="the source's database URL"):
            await SourceConnection.connect(_dsn(empty_dsn, **wrong), application_name=APPLICATION)


@pytest.mark.parametrize(
    ("sqlstate", "expected", "mend"),
    [
        ("28P01", 'password authentication failed for user "ada"', "Set the right password"),
        ("28000", 'no pg_hba.conf entry for host "10.0.0.1", user "ada", database "shop", no encryption', "Add a line for this host"),
        ("28000", 'role "ada" is not permitted to log in', "alter role ... login"),
        ("28000", 'role "ada" does not exist', "create what is missing"),
        ("3D000", 'database "shop" does not exist', "create what is missing"),
        ("42501", 'permission denied for database "shop"', "grant connect"),
        ("42501", "permission denied to start WAL sender", "alter role ... replication"),
    ],
)  # fmt: skip
async def test_errors_that_need_an_operator_say_what_to_do(sqlstate: str, expected: str, mend: str) -> None:
    async with server_that(refusing(sqlstate, expected)) as port:
        with pytest.raises(SourceStopped) as stopped:
            await SourceConnection.connect(
                f"postgresql://ada:secret@127.0.0.1:{port}/shop", application_name=APPLICATION
            )
    assert expected in str(stopped.value)
    assert mend in str(stopped.value)
    assert f"'shop' at 127.0.0.1:{port} as ada" in str(stopped.value)
    assert "secret" not in str(stopped.value)


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("53300", "sorry, too many clients already"),
        ("57P03", "the database system is starting up"),
        ("XX000", "an unexpected error"),
    ],
)
async def test_temporary_errors_are_unavailable(sqlstate: str, expected: str) -> None:
    async with server_that(refusing(sqlstate, expected)) as port:
        with pytest.raises(SourceUnavailable, match=expected):
            await SourceConnection.connect(
                f"postgresql://ada:secret@127.0.0.1:{port}/shop", application_name=APPLICATION
            )


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async with server_that(silent) as port:
        with pytest.raises(SourceUnavailable, match=r"did not answer within 0\.05 s"):
            await SourceConnection.connect(
                f"postgresql://ada@127.0.0.1:{port}/shop", application_name=APPLICATION, timeout=0.05
            )


async def test_the_first_of_several_hosts_that_answers_is_used(empty_dsn: str) -> None:
    given = parts(empty_dsn)
    async with server_that(refusing("57P03", "the database system is starting up")) as down:
        several = _dsn(empty_dsn, host=f"127.0.0.1,{given['host']}", port=f"{down},{given.get('port', 5432)}")
        async with await SourceConnection.connect(several, application_name=APPLICATION, timeout=5.0) as connection:
            assert await connection.query("select current_database()") == [(given["dbname"],)]


async def test_settings_that_the_url_lacks_are_those_of_libpq(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = parts(empty_dsn)
    for name, variable in (("host", "PGHOST"), ("port", "PGPORT"), ("user", "PGUSER"), ("password", "PGPASSWORD")):
        if name in given:
            monkeypatch.setenv(variable, given[name])
    async with await SourceConnection.connect(f"dbname={given['dbname']}", application_name=APPLICATION) as connection:
        assert await connection.query("select current_database()") == [(given["dbname"],)]


async def test_an_address_without_a_server_is_unavailable() -> None:
    async with server_that(silent) as port:
        pass
    with pytest.raises(SourceUnavailable, match=r"Connection refused\.$"):
        await SourceConnection.connect(f"postgresql://ada:secret@127.0.0.1:{port}/shop", application_name=APPLICATION)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ada:secret/x@host/shop",
        "postgresql://ada:sec@ret/?x=secret@host/shop",
        "postgresql:///shop?secret=1@host",
        "ada secret",
        "host='secret",
        "postgresql://ada:secret@host:port/shop",
    ],
)
async def test_a_url_that_can_t_be_read_says_what_would_be_right_and_no_password(dsn: str) -> None:
    with pytest.raises(SourceStopped, match="Write postgresql://user:password@host:5432/database") as stopped:
        await SourceConnection.connect(dsn, application_name=APPLICATION)
    assert "secret" not in str(stopped.value)


async def test_a_parameter_that_libpq_does_not_know_is_named() -> None:
    with pytest.raises(SourceStopped, match="the parameter 'search_path', which libpq and psql do not have"):
        await SourceConnection.connect(
            "postgresql://ada:secret@127.0.0.1/shop?search_path=public", application_name=APPLICATION
        )


# --- psycopg


async def test_without_psycopg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[capture\]'"):
        await SourceConnection.connect("postgresql://127.0.0.1/shop", application_name=APPLICATION)


@pytest.mark.process
async def test_psycopg_is_not_loaded_before_the_first_connection() -> None:
    code = "import sys, headrace, headrace.sources.postgres.database.checks, headrace.sources.postgres.connection.replication_stream; sys.exit('psycopg' in sys.modules)"
    assert (
        await anyio.run_process([sys.executable, "-c", code], stderr=subprocess.STDOUT, check=False)
    ).returncode == 0


def _dsn(dsn: str, **changed: str) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(dsn, **changed)
