"""Tables with columns of many types, random rows for them, and random transactions of such rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

TABLES = """
create type mood as enum ('sad', 'so so', 'happy, "very"');
create type pair as (a int, b text);
create domain positive as int check (value > 0);
create table things (
    id int primary key, i bigint, n numeric, money numeric(12, 2), t text, at timestamptz, local timestamp, d date, j jsonb, b bytea,
    a int[], ts text[], e mood, p pair, f float8, r float4, u uuid, ok boolean, pos positive, ps pair[], big text);
alter table things alter column big set storage external;
create table others (k text, m int, v text, big text, primary key (k, m)) partition by list (m);
alter table others alter column big set storage external;
create table others_0 partition of others for values in (0, 1);
create table others_1 partition of others default;
create table marks (id bigint generated always as identity primary key);
"""

ODD_TEXT = st.sampled_from(
    ['"', "\\", "NULL", "null", "{}", "", " ", "a,b", "(x)", "\u2028", "\x01\x1f\x7f", "é😀", "'", "\\x00", "\t\n\r"]
)
TEXT = ODD_TEXT | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
INT = st.integers(-(2**31), 2**31 - 1)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array(elements: Sequence[str | None]) -> str:
    return "{" + ",".join("NULL" if one is None else _quoted(one) for one in elements) + "}"


def _pair(value: tuple[int | None, str | None]) -> str:
    a, b = value
    return f"({'' if a is None else a},{'' if b is None else _quoted(b)})"


PAIR = st.tuples(st.none() | INT, st.none() | TEXT).map(_pair)
NUMERIC = st.sampled_from(["NaN", "0.000", "-0.10", "1e-30", "9" * 60 + "." + "1" * 40]) | st.decimals(
    -(10**12), 10**12, places=5
).map(str)
WHEN = st.sampled_from(["infinity", "-infinity"]) | st.datetimes().map(str)

# Strategies for values as text that the server reads, each with its SQL type.
COLUMNS: dict[str, tuple[str, st.SearchStrategy[str]]] = {
    "i": ("bigint", st.integers(-(2**63), 2**63 - 1).map(str)),
    "n": ("numeric", NUMERIC),
    "money": ("numeric(12, 2)", st.decimals(-(10**9), 10**9, places=2).map(str)),
    "t": ("text", TEXT),
    "at": ("timestamptz", WHEN),
    "local": ("timestamp", WHEN),
    "d": ("date", st.dates().map(str)),
    # A top-level JSON null can't be distinguished from a missing value where JSON is embedded in JSON.
    "j": ("jsonb", JSON.filter(lambda value: value is not None).map(lambda value: json.dumps(value, ensure_ascii=False))),
    "b": ("bytea", st.binary(max_size=20).map(lambda value: "\\x" + value.hex())),
    "a": ("int[]", st.sampled_from(["{}", "{NULL}", "{{1,2},{3,NULL}}"]) | st.lists(INT.map(str), max_size=4).map(_array)),
    "ts": ("text[]", st.lists(st.none() | TEXT, max_size=4).map(_array)),
    "e": ("mood", st.sampled_from(["sad", "so so", 'happy, "very"'])),
    "p": ("pair", PAIR),
    "f": ("float8", st.floats().map(repr)),
    "r": ("float4", st.floats(width=32).map(repr)),
    "u": ("uuid", st.uuids().map(str)),
    "ok": ("boolean", st.booleans().map(str)),
    "pos": ("positive", st.integers(1, 2**31 - 1).map(str)),
    "ps": ("pair[]", st.lists(st.none() | PAIR, max_size=3).map(_array)),
    # Values large enough to be stored out of line. The WAL of an update that leaves such a value
    # unchanged lacks it.
    "big": ("text", st.tuples(st.characters(min_codepoint=48, max_codepoint=122), st.sampled_from([10, 3_000, 20_000])).map(lambda of: of[0] * of[1])),
}  # fmt: skip


class Op(msgspec.Struct):
    """A statement and its parameters, as text or None."""

    sql: str
    args: tuple[Any, ...] = ()


class Block(msgspec.Struct):
    """Operations within a savepoint, which is kept or rolled back."""

    ops: list[Any]
    kept: bool


class Work(msgspec.Struct):
    """A transaction."""

    ops: list[Any]
    kept: bool


def rows(names: Sequence[str]) -> st.SearchStrategy[dict[str, str | None]]:
    return st.fixed_dictionaries({name: st.none() | COLUMNS[name][1] for name in names})


SOME_COLUMNS = st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True)


def insert(key: int, row: dict[str, str | None]) -> Op:
    names = list(row)
    values = [f"${n}::text::{COLUMNS[name][0]}" for n, name in enumerate(names, 2)]
    return Op(
        f"insert into things (id, {', '.join(names)}) values ($1::int, {', '.join(values)}) on conflict do nothing",
        (key, *row.values()),
    )


def update(key: int, row: dict[str, str | None]) -> Op:
    sets = [f"{name} = ${n}::text::{COLUMNS[name][0]}" for n, name in enumerate(row, 2)]
    return Op(f"update things set {', '.join(sets)} where id = $1::int", (key, *row.values()))


def move(old: int, new: int) -> Op:
    return Op("update things set id = $2::int where id = $1::int and not exists (select from things where id = $2::int)", (old, new))  # fmt: skip


def ops(lane: int, *, truncates: bool) -> st.SearchStrategy[Any]:
    """Operations on the keys of one lane, so that two concurrent transactions do not wait for each other."""
    key = st.integers(lane * 10_000, lane * 10_000 + 5)
    beyond = lane * 10_000 + 1_000
    name = st.sampled_from([f"{lane}", f"{lane} .*>", f"{lane}é"])
    single = [
        st.builds(insert, key, rows(sorted(COLUMNS))),
        st.builds(insert, key, SOME_COLUMNS.flatmap(rows)),
        st.builds(update, key, SOME_COLUMNS.flatmap(rows)),
        st.builds(move, key, key),
        st.builds(lambda id: Op("delete from things where id = $1::int", (id,)), key),  # noqa: A006
        st.builds(lambda k, m, v, big: Op("insert into others values ($1::text, $2::int, $3::text, $4::text) on conflict (k, m) do update set v = excluded.v", (k, m, v, big)), name, st.integers(0, 2), TEXT, COLUMNS["big"][1]),
        # Moves a row from one partition to another.
        st.builds(lambda k, m, n: Op("update others set m = $3::int where k = $1::text and m = $2::int and not exists (select from others where k = $1::text and m = $3::int)", (k, m, n)), name, st.integers(0, 2), st.integers(0, 2)),
        st.builds(lambda k, m: Op("delete from others where k = $1::text and m = $2::int", (k, m)), name, st.integers(0, 2)),
        # Many rows, so that the transaction is streamed before it ends.
        st.builds(lambda n: Op("insert into things (id, t) select g, repeat(md5(g::text), 10) from generate_series($1::int, $1::int + $2::int) as g on conflict do nothing", (beyond, n)), st.integers(100, 600)),
        st.just(Op("update things set t = t || '!', id = id + 1000 where id = $1::int and not exists (select from things where id = $1::int + 1000)", (beyond,))),
        st.just(Op("update things set i = coalesce(i, 0) % 1000 + 1 where id >= $1::int and id < $1::int + 2000", (beyond,))),
        st.just(Op("delete from things where id >= $1::int and id < $1::int + 5000", (beyond,))),
    ]  # fmt: skip
    if truncates:
        single.append(st.sampled_from([Op("truncate things"), Op("truncate things, others"), Op("truncate others")]))
    one = st.one_of(*single)
    return st.recursive(one, lambda inner: st.builds(Block, st.lists(inner, min_size=1, max_size=4), st.booleans()), max_leaves=8)  # fmt: skip


def work(lane: int, *, truncates: bool) -> st.SearchStrategy[Work]:
    return st.builds(Work, st.lists(ops(lane, truncates=truncates), min_size=1, max_size=6), st.sampled_from([True, True, True, False]))  # fmt: skip


ROUNDS = st.lists(
    st.tuples(work(0, truncates=True)) | st.tuples(work(0, truncates=False), work(1, truncates=False)),
    min_size=1,
    max_size=4,
)
"""Rounds of one transaction, or of two that take turns."""
