"""Shaping of random tables and changes equals that of a slow and obvious implementation."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.postgres.pgoutput.decoder import Decoder
from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Column, Delete, Insert, Relation, Truncate, Update
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.tables import Table, TableColumn
from headrace.sources.templates import token
from tests.sources.postgres import wire
from tests.sources.postgres.tables_for_tests import spec

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
KINDS: dict[int, st.SearchStrategy[str]] = {
    20: st.integers(-(2**63), 2**63 - 1).map(str),
    25: TEXTS,
    16: st.sampled_from("tf"),
    1700: st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda number: format(number, "f")),
    114: st.recursive(st.none() | st.integers() | TEXTS, st.lists, max_leaves=4).map(json.dumps),
}


class Made(NamedTuple):
    columns: list[tuple[str, int]]
    key: list[str]
    identity: str
    changes: list[tuple[str, Any, Any]]  # action, old row, new row


@st.composite
def worlds(draw: st.DrawFn) -> Made:
    names = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=5, unique=True))
    columns = [(name, draw(st.sampled_from(sorted(KINDS)))) for name in names]
    key = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    identity = draw(st.sampled_from("df"))

    def value(name: str, oid: int, *, new: bool) -> st.SearchStrategy[Any]:
        found: st.SearchStrategy[Any] = KINDS[oid].map(str.encode)
        if name in key:
            return found
        return found | st.none() | st.just(UNCHANGED) if new else found | st.none()

    def row(*, new: bool = False) -> list[Any]:
        return [draw(value(name, oid, new=new)) for name, oid in columns]

    changes: list[tuple[str, Any, Any]] = []
    for action in draw(st.lists(st.sampled_from(["insert", "update", "delete", "truncate", "read"]), max_size=6)):
        old = row()
        new = row(new=action == "update")
        if draw(st.booleans()):  # usually only a few columns change
            new = [before if draw(st.booleans()) else after for before, after in zip(old, new, strict=True)]
        changes.append((action, old, new))
    return Made(columns, key, identity, changes)


SETTINGS = st.fixed_dictionaries(
    {}, optional={"numeric": st.just("number"), "actions": st.sampled_from([("insert", "delete"), ("update",)])}
)


# --- the obvious implementation: dicts, json.loads and json.dumps


def plain(oid: int, text: bytes, numeric: str) -> Any:
    value = text.decode()
    match oid:
        case 20:
            return int(value)
        case 16:
            return value == "t"
        case 1700:
            return value if numeric == "string" else Number(value)
        case 114:
            return json.loads(value)
    return value


class Number(str):
    """The text of a number. The JSON must keep all its digits."""


def read(data: str) -> Any:
    return json.loads(data, parse_float=Number)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Number) or isinstance(other, Number):
        return str(one) == str(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return bool(one == other) and type(one) is type(other)


def as_token(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return token(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return token(str(value) if isinstance(value, Number) else value)


def expected(world: Made, action: str, old: Any, new: Any, idx: int, at: Transaction, numeric: str) -> tuple[str, Any]:
    """Return the expected key and message of a change."""
    types = dict(world.columns)

    def values(row: Any) -> dict[str, Any]:
        return {
            name: value if value is None or value is UNCHANGED else plain(types[name], value, numeric)
            for name, value in zip(types, row, strict=True)
        }

    before, after = values(old), values(new)
    full = world.identity == "f"
    moved = any(
        before[name] != after[name] or old[list(types).index(name)] != new[list(types).index(name)]
        for name in world.key
    )
    metadata: dict[str, Any] = {
        "table_schema": "public", "table_name": "orders",
        "commit_timestamp": (datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=at.at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "commit_lsn": at.lsn, "commit_idx": idx,
    }  # fmt: skip
    changes: Any = None
    record: Any = after
    if action == "delete":
        record = before if full else {name: before[name] for name in types if name in world.key}
    elif action == "truncate":
        record = None
    elif action == "update":
        if full:
            record = {name: before[name] if after[name] is UNCHANGED else after[name] for name in types}
            changed = [
                n for n, (b, a) in zip(types, zip(old, new, strict=True), strict=True) if a is not UNCHANGED and a != b
            ]
            changes = {name: before[name] for name in changed}
        elif moved:
            changed = [
                n for n, (b, a) in zip(types, zip(old, new, strict=True), strict=True) if n in world.key and a != b
            ]
            changes = {name: before[name] for name in changed}
        missing = [name for name in types if record[name] is UNCHANGED]
        record = {name: value for name, value in record.items() if name not in missing}
        if missing:
            metadata["unchanged"] = missing
    key = ".".join(
        ["public.orders", *(as_token((record or {})[name]) for name in world.key)]
        if record is not None
        else ["public.orders"]
    )
    return key, {"record": record, "changes": changes, "action": action, "metadata": metadata}


def change_of(world: Made, action: str, old: Any, new: Any) -> Any:
    """Return the change as the decoder would produce it."""
    names = [name for name, _ in world.columns]
    only_key = [value if name in world.key else None for name, value in zip(names, old, strict=True)]
    full = world.identity == "f"
    match action:
        case "insert":
            return Insert(1, new)
        case "update":
            moved = any(b != a for name, b, a in zip(names, old, new, strict=True) if name in world.key)
            return Update(1, new, old if full else only_key if moved else None, key_only=not full and moved)
        case "delete":
            return Delete(1, old if full else only_key, key_only=not full)
    return Truncate((1,), cascade=False, restart_identity=False)


def definitions(world: Made, *, partitioned: bool = False) -> tuple[Relation, Table]:
    """Return the relation and the table, as the server describes them."""
    flags = tuple(Column(n, oid, -1, world.identity == "f" or n in world.key) for n, oid in world.columns)
    table = Table(
        oid=1, name="public.orders", schema="public", relation="orders", key=tuple(world.key), primary=True,
        columns=tuple(TableColumn(n, oid, n in world.key) for n, oid in world.columns), identity=world.identity,
        identity_columns=tuple(world.key), partitioned=partitioned,
    )  # fmt: skip
    return Relation(1, "public", "orders", world.identity, flags), table


@given(world=worlds(), settings=SETTINGS, lsn=st.integers(1, 2**63), at=st.integers(0, 10**15))
def test_the_messages_are_those_that_an_obvious_formulation_makes(
    world: Made, settings: dict[str, Any], lsn: int, at: int
) -> None:
    made = spec(**settings)
    shaper = Shaper(made)
    relation, shape = definitions(world)
    shaper.set_relation(relation, shape, {})
    transaction, shaped_changes, wanted, idx = Transaction(lsn, at, 5), ShapedChanges(), [], 0
    for action, old, new in world.changes:
        if action == "read":
            assert shaper.add_rows(shape, {}, [new], [n for n, _ in world.columns], transaction, shaped_changes) == 1
            wanted.append(expected(world, action, old, new, 0, transaction, made.numeric))
            continue
        used = shaper.change(change_of(world, action, old, new), transaction, idx, shaped_changes)
        assert used == (action in made.actions)
        if used:
            wanted.append(expected(world, action, old, new, idx, transaction, made.numeric))
        idx += used
    assert not shaped_changes.failures
    assert shaped_changes.keys == [key for key, _ in wanted]
    for data, (_, message) in zip(shaped_changes.data, wanted, strict=True):
        assert same(read(data), message), (data, message)


MODES = st.one_of(
    SETTINGS,
    st.fixed_dictionaries(
        {"mode": st.just("rows"), "deletes": st.sampled_from(["ignore", "tombstone"])},
        optional={"numeric": st.just("number")},
    ),
)


@given(
    world=worlds(), settings=MODES, captured=st.integers(0, 31), partitioned=st.booleans(), at=st.integers(0, 10**15)
)
def test_short_changes_become_the_messages_that_their_rows_become(
    world: Made, settings: dict[str, Any], captured: int, partitioned: bool, at: int
) -> None:
    relation, table = definitions(world, partitioned=partitioned)
    columns = [name for place, (name, _) in enumerate(world.columns) if captured >> place & 1 or name in world.key]
    made = spec(columns={"public.orders": columns}, **settings)
    payloads = [
        wire.encode(change_of(world, action, old, new)) for action, old, new in world.changes if action != "read"
    ]
    results, used = [], []
    for short in (False, True):
        shaper, decoder, into, numbers = Shaper(made), Decoder(short_changes=short), ShapedChanges(), []
        shaper.set_relation(relation, table, {})
        for transaction in (Transaction(1, at, 5), Transaction(2, at + 1, 6)):  # in the second one, the plans exist
            for payload in payloads:
                numbers.append(shaper.change(decoder.decode(payload), transaction, sum(numbers), into))  # type: ignore[arg-type]
        results.append(into)
        used.append(numbers)
    assert results[0] == results[1]
    assert used[0] == used[1]
