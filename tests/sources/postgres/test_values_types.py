"""Types as the catalog describes them, and values from replication and from databases of any encoding."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import pytest

from headrace.sources.postgres import values
from headrace.sources.postgres.pgoutput import messages as m
from headrace.sources.postgres.pgoutput.decoder import Decoder
from headrace.sources.postgres.values import TypeInfo, converter, load_types
from headrace.testing.databases import on_server
from tests.sources.postgres.samples import NONE_CAN_BE_WRITTEN, SAMPLES
from tests.sources.postgres.sessions import Session
from tests.sources.postgres.walsender import Walsender
from tests.support import servers


@pytest.fixture
def session(empty_dsn: str) -> Iterator[Session]:
    session = Session(empty_dsn)
    yield session
    session.close()


def oid_of(session: Session, type_name: str) -> int:
    return int(session.value("select $1::regtype::oid", type_name))


def loaded(session: Session, *type_names: str) -> dict[str, TypeInfo]:
    known: dict[int, TypeInfo] = {}
    servers.run(load_types(session, [oid_of(session, name) for name in type_names], known))
    return {info.name: info for info in known.values()}


class Silent:
    """A connection that allows no query."""

    async def query(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        raise AssertionError(sql)


def test_a_type_is_loaded_with_all_that_it_is_made_of(session: Session) -> None:
    session.rows("create type mood as enum ('sad')")
    session.rows("create domain moods as mood[]")
    session.rows('create type box_and_more as (gone int, boxes box[], "It\'s" moods)')
    session.rows("alter type box_and_more drop attribute gone")
    session.rows("create domain spans as int8multirange[]")
    types = loaded(session, "box_and_more", "spans")
    named = {info.oid: info.name for info in types.values()}
    assert [(name, named[oid]) for name, oid in types["box_and_more"].attributes] == [
        ("boxes", "_box"),
        ("It's", "moods"),
    ]
    shown = {info.name: (info.kind, info.element and named[info.element], info.delimiter) for info in types.values()}
    assert shown == {
        "box_and_more": ("composite", None, ","),
        "_box": ("array", "box", ";"),
        "box": ("base", None, ","),
        "moods": ("domain", "_mood", ","),
        "_mood": ("array", "mood", ","),
        "mood": ("enum", None, ","),
        "spans": ("domain", "_int8multirange", ","),
        "_int8multirange": ("array", "int8multirange", ","),
        "int8multirange": ("multirange", "int8range", ","),
        "int8range": ("range", "int8", ","),
        "int8": ("base", None, ","),
    }


def test_the_catalogs_own_vectors_are_no_arrays_but_arrays_of_them_are(session: Session) -> None:
    types = loaded(session, "int2vector", "int2vector[]")
    assert (types["int2vector"].kind, types["_int2vector"].kind) == ("base", "array")
    assert session.json("int2vector[]", ['{"1 2",NULL,""}']) == ["[[1,2],null,[]]"]


def test_the_row_type_of_a_table_is_a_composite(session: Session) -> None:
    session.rows("create table pairs (a int, gone text, b text)")
    session.rows("alter table pairs drop column gone")
    assert session.json("pairs", ['(1,"x y")']) == ['{"a":1,"b":"x y"}']


def test_a_type_that_was_dropped_has_strings(session: Session) -> None:
    known: dict[int, TypeInfo] = {}
    servers.run(load_types(session, [987654], known))
    assert converter(987654, known)(b"{what was it") == b'"{what was it"'


def test_known_types_are_not_queried_again(session: Session) -> None:
    known: dict[int, TypeInfo] = {}
    oids = [oid_of(session, name) for name in ("int4", "text[]", "nummultirange")] + [987654]
    servers.run(load_types(session, oids, known))
    servers.run(load_types(Silent(), oids, known))


def test_types_of_other_schemas_are_found_whatever_the_search_path_hides(session: Session) -> None:
    session.rows("create schema aside")
    session.rows("create type aside.int4 as (a int)")
    session.rows("create function aside.any(text) returns text language sql as 'select null::text'")
    session.rows("set search_path = aside, pg_catalog")
    assert session.json("aside.int4[]", ['{"(1)"}']) == ['[{"a":1}]']


def test_settings_win_over_those_of_the_database(session: Session, empty_dsn: str) -> None:
    name = session.value("select current_database()").decode()
    odd = {
        "datestyle": "German",
        "timezone": "Asia/Kathmandu",
        "intervalstyle": "sql_standard",
        "bytea_output": "escape",
    }
    for setting, value in (odd | {"extra_float_digits": "-2"}).items():
        session.rows(f"alter database {name} set {setting} = '{value}'")
    other = Session(empty_dsn)
    try:
        assert other.json("timestamptz", ["2023-10-15 14:30:00 UTC"]) == ['"2023-10-15T14:30:00Z"']
        assert other.json("interval", ["1 day 2 hours"]) == ['"P1DT2H"']
        assert other.json("bytea", ["hi"]) == ['"\\\\x6869"']
        assert other.json("float8", ["0.30000000000000004"]) == ["0.30000000000000004"]
    finally:
        other.close()


def test_replication_gives_values_the_text_that_a_query_gives_them(session: Session, empty_dsn: str) -> None:
    present = {
        name.decode()
        for [name] in session.rows("select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace")
        if name is not None
    }
    names = sorted((SAMPLES.keys() - NONE_CAN_BE_WRITTEN) & present)
    if not session.has_xml:
        names.remove("xml")
    columns = [f'"c_{name}" "{name}", "a_{name}" "{name}"[]' for name in names]
    session.rows(f"create table everything (n int, {', '.join(columns)})")
    session.rows("alter table everything replica identity full")
    session.rows("create publication everything for table everything")
    # A row must fit into one page, and some types have long literals.
    most = max(len(SAMPLES[name]) for name in names)
    with Walsender(empty_dsn, "everything", 1, **values.SETTINGS) as sender:
        for n in range(most):
            literals = [SAMPLES[name][n % len(SAMPLES[name])] for name in names]
            literals = [one if len(one) < 100 else None for one in literals]  # type: ignore[misc]
            params = ", ".join(f'${i + 1}::"{name}", array[${i + 1}::"{name}"]' for i, name in enumerate(names))
            session.rows(f"insert into everything select {n}, {params}", *literals)
        expected = session.rows("select * from everything order by n")
        decoder, found = Decoder(), []
        for payload in sender:
            message = decoder.decode(payload)
            if isinstance(message, m.Insert):
                found.append(message.new)
            if len(found) == most:
                break
    assert found == expected


@pytest.fixture
def ascii_dsn(server_dsn: str) -> Iterator[str]:
    """A database in SQL_ASCII, which accepts any bytes."""
    name = f"headrace_test_{secrets.token_hex(6)}"
    server = Session(server_dsn)
    provider = " locale_provider libc" if server.version >= 15 else ""
    server.rows(f"create database {name} template template0 encoding 'SQL_ASCII' locale 'C'{provider}")
    try:
        yield on_server(server_dsn, name)
    finally:
        server.rows(f"drop database {name} with (force)")
        server.close()


def test_bytes_that_are_no_utf8_become_the_replacement_character(ascii_dsn: str) -> None:
    session = Session(ascii_dsn)
    try:
        caf = r"E'caf\351 \"x\"'"
        for type_name, expression, expected in [
            ("text", caf, 'caf\ufffd "x"'),
            ("text[]", f"array[{caf}, null]", ['caf\ufffd "x"', None]),
            ("json", r"E'{\"caf\351\": 1}'", {"caf\ufffd": 1}),
            ("name", r"E'\377'", "\ufffd"),
        ]:
            value = session.value(f"select ({expression})::{type_name}")
            assert json.loads(session.converter(type_name)(value)) == expected
    finally:
        session.close()


def test_bytes_that_are_no_utf8_do_not_hold_replication_up(ascii_dsn: str) -> None:
    session = Session(ascii_dsn)
    try:
        session.rows("create table notes (note text)")
        session.rows("create publication everything for table notes")
        with Walsender(ascii_dsn, "everything", 1, **values.settings("SQL_ASCII")) as sender:
            session.rows(r"insert into notes values (E'caf\351')")
            decoder = Decoder()
            insert = next(one for one in map(decoder.decode, sender) if isinstance(one, m.Insert))
        assert insert.new == [b"caf\xe9"]
    finally:
        session.close()
