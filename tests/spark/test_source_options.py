"""The options of the data source: they are parsed once, and invalid ones raise a clear error."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.model.errors import (
    ConfigurationError,
    HeadraceError,
    InvalidFilter,
    SchemaError,
    StoreUnavailable,
    UnknownStream,
)
from headrace.model.text.masking import masked
from headrace_spark.source import connection
from headrace_spark.source.connection import connect, fetch, with_defaults
from headrace_spark.source.options import Options, check_order

URL = "postgresql://ann@db/orders"


def options(**given: Any) -> Options:
    return Options.of({"database": URL, "stream": "orders", **given})


def test_what_is_left_out_is_everything() -> None:
    found = options()
    assert (found.database, found.stream, found.filters, found.where) == (URL, "orders", (">",), None)
    assert (found.start, found.end, found.partitions, found.max_rows) == ("earliest", "latest", None, None)
    assert (found.fail_on_data_loss, found.settle_timeout, found.consumer) == (True, 30.0, None)


def test_names_count_in_any_case_as_spark_hands_them_over() -> None:
    found = Options.of(
        {"DATABASE": URL, "path": "orders", "maxrows": "5", "failOnDataLoss": "False", "settletimeout": "2s"}
    )
    assert (found.stream, found.max_rows, found.fail_on_data_loss, found.settle_timeout) == ("orders", 5, False, 2.0)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("17", 17),
        ("latest", "latest"),
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T12:00:00+02:00", datetime(2030, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_range_begins_at_an_end_a_seq_or_a_time(text: str, place: Any) -> None:
    assert options(start=text).start == place


@pytest.mark.parametrize(
    ("text", "filters"),
    [("a.>, b.*", ("a.>", "b.*")), ('["a,b", "c"]', ("a,b", "c")), (" ", (">",))],
)
def test_filters_are_parted_by_commas_or_a_list(text: str, filters: tuple[str, ...]) -> None:
    assert options(filter=text).filters == filters


def test_a_condition_is_kept_as_json() -> None:
    assert options(where="data.total > 5").where == '{"field":"data.total","op":">","value":5}'


@pytest.mark.parametrize(
    ("given", "expected_error"),
    [
        ({"maxRow": "5"}, "Did you mean maxRows?"),
        ({"colour": "red"}, "The options are database, stream, streamPattern"),
        ({"start": "yesterday"}, "Write earliest, latest, a seq, or a time"),
        ({"start": "0"}, "A seq is from 1"),
        ({"partitions": "0"}, "must be a number from 1"),
        ({"partitions": "many"}, "must be a number from 1"),
        ({"maxBytes": "0"}, "must be at least 1 byte"),
        ({"maxBytes": "little"}, "is not a size"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"settleTimeout": "soon"}, "is not a duration"),
        ({"filter": "[1"}, "is not a list of filters"),
        ({"stream": ""}, "The stream is not set."),
    ],
)
def test_invalid_options_are_reported(given: dict[str, str], expected_error: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        options(**given)
    assert expected_error in str(raised.value)


def test_filters_are_checked() -> None:
    with pytest.raises(InvalidFilter, match="'>' in the middle"):
        options(filter="a.>.b")


def test_a_range_goes_forward() -> None:
    with pytest.raises(ValueError, match="start=9 is after end=5"):
        check_order(options(start="9", end="5"))


def test_a_password_is_not_shown() -> None:
    assert masked("postgresql://ann:secret@db/x?sslpassword=secret") == "postgresql://ann:…@db/x?sslpassword=…"
    assert masked("postgresql://ann:se@cret@db/x") == "postgresql://ann:…@db/x"


@pytest.mark.parametrize(
    "url",
    [
        "postgre://ann:secret@localhost:1/x",
        "ann:secret@localhost:1/x",
        "postgresql://ann:se@secret@localhost:1/x",
        "postgresql://ann:secret%zz@localhost:1/x",
        "postgresql://ann:secret@[::1/x",
        "postgresql://localhost:1/x?user=ann&password=secret",
        "host=localhost port=1 password=secret",
    ],
)
def test_a_password_is_not_shown_by_libpq_s_errors_about_a_url(url: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        connect(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value)).replace(repr(url), "")


def test_a_password_may_have_an_at_sign_as_elsewhere(dsn: str) -> None:
    user, _, rest = dsn.partition("@")
    connect(f"{user}{'' if ':' in user.partition('//')[2] else ':'}p@ss@{rest}").close()


def test_connections_have_a_name_and_raise_our_errors(dsn: str) -> None:
    connection = connect(dsn)
    try:
        assert fetch(connection, dsn, "select current_setting('application_name'), $1::bigint", 7) == [
            ("headrace spark", 7)
        ]
        with pytest.raises(UnknownStream, match="There is no stream 'nope': create it, or mend the name"):
            fetch(connection, dsn, "select headrace_internal.require_stream('nope')")
    finally:
        connection.close()
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        connect("postgresql://ann:secret@127.0.0.1:1/x")
    with pytest.raises(ConfigurationError, match="Correct the database URL"):
        connect(dsn.replace("headrace_test_", "no_"))


def test_a_database_without_the_schema_is_reported(empty_dsn: str) -> None:
    connection = connect(empty_dsn)
    try:
        with pytest.raises(SchemaError, match="Run `headrace migrate`"):
            fetch(connection, empty_dsn, "select headrace_internal.resolved_position('orders', 0)")
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://h/d", {"tcp_user_timeout": "30000", "keepalives_idle": "10", "connect_timeout": "10"}),
        ("postgresql://h/d?tcp_user_timeout=7", {"tcp_user_timeout": "7", "keepalives_count": "3"}),
        ("host=h dbname=d tcp_user_timeout=7", {"tcp_user_timeout": "7", "keepalives_count": "3", "host": "h"}),
    ],
)
def test_a_connection_notices_that_its_server_vanished_unless_the_url_says_otherwise(
    url: str, found: dict[str, str]
) -> None:
    conninfo = pytest.importorskip("psycopg.conninfo")
    assert found.items() <= conninfo.conninfo_to_dict(with_defaults(url)).items()


def test_a_process_asks_for_the_types_of_a_database_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads the whole catalogue for them, which costs more than a task's own queries."""
    import adbc_driver_postgresql

    made: list[str] = []
    make = adbc_driver_postgresql.connect
    monkeypatch.setattr(adbc_driver_postgresql, "connect", lambda url: made.append(url) or make(url))
    monkeypatch.setattr(connection, "_MAX_DATABASES", 2)
    monkeypatch.setattr(connection, "_databases", {})
    opened = [connect(dsn) for _ in range(3)]
    assert len(made) == 1
    opened += [connect(f"{dsn}&application_name=other{n}") for n in range(3)]
    assert (len(made), len(connection._databases)) == (4, 2)
    for n, one in enumerate(opened):  # also those of a database that is not kept any more
        assert fetch(one, dsn, "select $1::int", n) == [(n,)]
        one.close()
    with connect(dsn) as again:
        assert fetch(again, dsn, "select 1") == [(1,)]
