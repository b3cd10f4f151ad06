"""Conditions in SQL: the generated SQL agrees with the Python model, whatever JSON is stored."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import store
from headrace.model.conditions import And, Compare, Condition, In, Match, Not, Null, Or, encode, field, matches, parse
from headrace.model.errors import InvalidInput
from tests.conftest import Declare
from tests.support.servers import run

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    key: str
    seq: int
    created_at: datetime
    data: str
    headers: str | None


# --- messages

# Names and strings in the spellings that JSON allows. The decoded strings often match what a
# condition compares with.
_STRINGS = [
    "a", "b", "ab", "A", "aB", "paid", "p\\u0061id", "0", "1", "1.0", "-1", "true", "null", "{}", "[1]", "", " ", "a/b", "a\\/b",
    "a\\\\b", "a\\\"b", "a\\nb", "a%b", "a_b", "it's", "''", "$1", "$$", "$sql$", "%s", "%1$s", "ä", "\\u00e4", "\\u00C4", "🦦",
    "\\ud83e\\udda6", "C:\\\\users", "\\u007f", "\x7f", "日本", "\\t", "1e5",
]  # fmt: skip
_BROKEN = ["\\ud800", "\\uDFFF", "a\\u0000", "\\ud83ex", "\\udda6\\ud83e"]
_NUMBERS = [
    "0", "-0", "1", "1.0", "1e0", "10E-1", "0.1", "-1", "-1.00", "2", "100", "1e2", "1E+2", "99.999999999999999999999", "1e400000",
    "-1e400000", "1e-400000", "-1e-400000", "0e99999999999999999999", "1e99999999999999999999", "1e-99999999999999999999",
    "123456789012345678901234567890", "0.1e1", "1e131072", "1e-16384", "1" + "0" * 200, "0." + "0" * 200 + "1", "1." + "0" * 6000 + "1",
]  # fmt: skip
_NAMES = ["a", "a", "b", "b", "0", "-1", "odd key", "", 'q\\"q', "\\u0061", "d.d", "01", "+1", "🦦"]
_space = st.sampled_from(["", "", "", " ", "\n\t "])
_strings = st.sampled_from(_STRINGS) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3).map(
    lambda text: json.dumps(text)[1:-1]
)  # fmt: skip
_scalars = st.one_of(
    _strings.map('"{}"'.format), st.sampled_from(_NUMBERS), st.integers(-3, 3).map(str), st.sampled_from(["true", "false", "null"])
)  # fmt: skip
_rarely_broken = st.integers(0, 60).flatmap(
    lambda chance: st.sampled_from(_BROKEN).map('"{}"'.format) if chance == 7 else _scalars
)


def _object(pairs: list[tuple[str, str, str]]) -> str:
    return "{" + ",".join(f'{space}"{name}"{space}:{value}' for name, value, space in pairs) + "}"


def _array(values: list[str]) -> str:
    return "[" + ", ".join(values) + "]"


documents = st.builds(
    "{0}{1}{0}".format,
    _space,
    st.recursive(
        _rarely_broken,
        lambda inner: st.one_of(
            st.lists(st.tuples(st.sampled_from(_NAMES), inner, _space), max_size=4).map(_object),
            st.lists(st.tuples(st.sampled_from(_NAMES), inner, _space), max_size=4).map(_object),
            st.lists(inner, max_size=4).map(_array),
        ),
        max_leaves=10,
    ),
)
headers = st.none() | st.lists(st.tuples(st.sampled_from(_NAMES), _rarely_broken, _space), max_size=3).map(_object)
rows = st.builds(
    Row,
    st.sampled_from(["a", "b", "a.b", "orders.1", "it's", "ä", "A.%"]),
    st.sampled_from([0, 1, 2, 10**6, 2**62]),
    st.sampled_from([EPOCH, EPOCH + timedelta(microseconds=1), EPOCH - timedelta(days=400)]),
    documents,
    headers,
)

# --- conditions

_values = st.one_of(
    _strings.map(lambda text: json.loads(f'"{text}"')),
    st.integers(-3, 3),
    st.sampled_from(["1.0", "0.1", "100", "1e-300", "-1e300", "123456789012345678901234567890"]).map(
        lambda text: json.loads(text, parse_float=lambda number: parse(f"data = {number}").value)  # type: ignore[attr-defined]
    ),
)
_steps = st.sampled_from(["a", "a", "b", "b", "0", "1", "-1", "odd key", "", 'q"q', "d.d", "01", "+1", "7", "🦦"])
_fields = st.builds(
    lambda root, steps: root + "".join('."' + step.replace('"', '""') + '"' for step in steps),
    st.sampled_from(["data", "data", "data", "headers"]),
    st.sampled_from([0, 1, 1, 1, 2, 2, 3]).flatmap(lambda size: st.lists(_steps, min_size=size, max_size=size)),
)
# The subset of regex syntax that means the same in Python and Postgres.
_regexes = st.sampled_from(
    ["", "a", "^a", "^(a|p)", "[0-9]+", "a.b", "^a?b", "A", "[^a]", "ä", "\\\\", "^\\.", "'", "%s", "^.{2}"]
)
_patterns = st.sampled_from(
    ["%", "a%", "%b", "a_b", "_", "A%", "p%d", "%a%b%", "", "a\\%b", "a\\_b", "a\\\\b", "\\a%", "%/%", "ä", "%ä%", "it's", "%s", "___", "%\n%"]
)  # fmt: skip
_orders = st.sampled_from(["<", "<=", ">", ">="])
_equalities = st.sampled_from(["=", "=", "!="])
_leaves = st.one_of(
    st.builds(Compare, _fields, _equalities, _values | st.booleans()),
    st.builds(Compare, _fields, _orders, _values),
    st.builds(In, _fields, st.sampled_from(["in", "not in"]), st.lists(_values | st.booleans(), min_size=1, max_size=5)),
    st.builds(Null, _fields, st.sampled_from(["is null", "is not null"])),
    st.builds(Match, _fields | st.just("key"), st.sampled_from(["like", "ilike"]), _patterns),
    st.builds(Match, _fields | st.just("key"), st.just("regex"), _regexes),
    st.builds(Compare, st.just("key"), _equalities | _orders, st.sampled_from(["a", "a.b", "it's", "ä", "A.%"])),
    st.builds(In, st.just("key"), st.sampled_from(["in", "not in"]), st.just(["a", "it's", '"{}']) ),
    st.builds(Compare, st.just("seq"), _equalities | _orders, st.sampled_from([0, 1, 1.5, 10**30, 2**62])),
    st.builds(In, st.just("seq"), st.sampled_from(["in", "not in"]), st.sampled_from([[1, 2], [1, 10**30, 0.5]])),
    st.builds(Compare, st.just("created_at"), _equalities | _orders, st.sampled_from([EPOCH, "2030-01-01", "2030-01-01T02:00:00+02"])),
    st.builds(In, st.just("created_at"), st.sampled_from(["in", "not in"]), st.just(["2030-01-01", "2031-01-01T00:00Z"])),
)  # fmt: skip
conditions: st.SearchStrategy[Condition] = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Not, inner),
    ),
    max_leaves=4,
)


async def judged(dsn: str, some: list[Row], trees: list[str]) -> list[list[bool | None]]:
    """Evaluate each condition for each row. The rows are in a table like a stream's."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            'create temp table m (place int, key text collate "C", seq bigint, created_at timestamptz, data json, headers json)'
        )
        await connection.executemany(
            "insert into m values ($1, $2, $3, $4, $5, $6)", [(n, *row) for n, row in enumerate(some)]
        )
        tests = [await connection.fetchval("select headrace_internal.where_condition($1)", tree) for tree in trees]
        return [row[0] for row in await connection.fetch(f"select array[{', '.join(tests)}] from m order by place")]
    finally:
        await connection.close()


def judge(condition: Condition, row: Row) -> bool:
    return matches(condition, row.key, row.data, row.headers, row.seq, row.created_at)


@given(st.lists(rows, min_size=8, max_size=25), st.lists(conditions, min_size=8, max_size=25))
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_the_database_judges_content_as_the_model_does(dsn: str, some: list[Row], wanted: list[Condition]) -> None:
    for row, found in zip(some, run(judged(dsn, some, [encode(condition) for condition in wanted])), strict=True):
        for condition, answer in zip(wanted, found, strict=True):
            assert answer is judge(condition, row), (condition, row)


def _one_field(values: list[str]) -> list[Row]:
    return [Row("k", 1, EPOCH, f'{{"a": {value}}}', None) for value in values]


def test_every_spelling_of_a_value_against_every_test(dsn: str) -> None:
    spelled = [
        *map('"{}"'.format, _STRINGS + _BROKEN),
        *_NUMBERS,
        "true", "false", "null", "{}", "[]", "[1]", '{"a": 1}', '{"a": "\\ud800"}',
    ]  # fmt: skip
    some = [
        *_one_field(spelled),
        Row("k", 1, EPOCH, "{}", None),
        *(Row("k", 1, EPOCH, value, value) for value in ("1", '"a"', "null")),
    ]
    strings = ["a", "aB", "paid", "1", "true", "{}", "", "a/b", "a\\b", "it's", "ä", "🦦", "a\nb"]
    numbers = [0, 1, -1, 100, 0.1, "1e-300", "-1e300", "1e400", 123456789012345678901234567890, "1." + "0" * 300 + "1"]
    literals: list[Any] = [*strings, *(parse(f"data = {number}").value for number in numbers)]  # type: ignore[attr-defined]
    wanted: list[Condition] = [
        *(Compare("data.a", op, literal) for op in ("=", "!=", "<", "<=", ">", ">=") for literal in literals),
        *(Compare("data.a", op, truth) for op in ("=", "!=") for truth in (True, False)),
        *(In("data.a", op, tuple(literals[n : n + 3])) for op in ("in", "not in") for n in range(len(literals) - 2)),
        *(In("data.a", op, (*literals[:16], True)) for op in ("in", "not in")),
        *(Null(name, op) for op in ("is null", "is not null") for name in ("data.a", "data", "headers")),
        *(Match("data.a", op, pattern)
          for op in ("like", "ilike") for pattern in ("%", "a%", "%B", "_", "p%d", "", "a\\%b", "%/%", "ä", "it's", "%\n%", "c:\\\\%")),
        *(Match("data.a", "regex", pattern) for pattern in ("", "^a", "[0-9]+", "a.b", "ä", "'", "^(a|p)")),
        *(Compare("data", op, literal) for op in ("=", "!=", "<") for literal in ("a", 1)),  # type: ignore[arg-type]
    ]  # fmt: skip
    found = run(judged(dsn, some, [encode(condition) for condition in wanted]))
    wrong = [
        (row.data, condition)
        for row, answers in zip(some, found, strict=True)
        for condition, answer in zip(wanted, answers, strict=True)
        if answer is not judge(condition, row)
    ]
    assert wrong == []
    # The examples are not trivial: each operator accepts some rows and rejects some.
    seen = {
        (encode(condition).split('"op":')[1][:8], answer)
        for answers in found
        for condition, answer in zip(wanted, answers, strict=True)
    }
    assert {op for op, _ in seen} == {op for op, answer in seen if answer} == {op for op, answer in seen if not answer}


_DEEP = "[" * 12_000 + "]" * 12_000
_WIDE = json.dumps({"a": 1, "pad": ["x" * 100] * 300, "tail": "paid"})


_HARD = [
    # Postgres stores these as JSON, but can't decode them, so they have no fields.
    ("data.a = 1", '{"a": 1, "b": "\\ud800"}', False),
    ("data.a is null", '{"a": 1, "\\udc00": 2}', True),
    ("not data.a > 0", '{"a": 1, "b": "\\u0000"}', True),
    ("data.a = 'x' or data.b is null", '"\\ud83d"', True),
    # Postgres can decode these.
    ("data.a = 1", '{"a": 1, "b": "\\ud83d\\ude00"}', True),
    ("data.a = 1", '{"a": 1, "b": "\\\\ud800"}', True),
    ("data.a = 'paid'", '{"a": "\\u0070aid"}', True),
    ("data.a like '%/%'", '{"a": "x\\/y"}', True),
    ("data.a = 1", _WIDE, True),
    ("data.tail = 'paid'", _WIDE, True),
    ("data.tail = 'none'", _WIDE, False),
    ("data.0.0.0 is not null", _DEEP, True),
    ("data.a is null", '{"a": ' * 9_000 + "null" + "}" * 9_000, False),
    # Numbers beyond the range of `numeric`, and far beyond any practical use.
    ("data.a > 1e400", '{"a": 1e9999999999999999999999}', True),
    ("data.a < -1e400", '{"a": -1e131073}', True),
    ("data.a > 0", '{"a": 1e-16385}', True),
    ("data.a = 0", '{"a": 1e-99999999999}', False),
    ("data.a = 0", '{"a": 0.000e99999999999}', True),
    ("data.a = 1", '{"a": 1.' + "0" * 100_000 + "}", True),
    ("data.a > 1", '{"a": 1.' + "0" * 100_000 + "1}", True),
    ("data.a > 1e400", '{"a": ' + "9" * 200_000 + "}", True),
    ("data.a = 1e100", '{"a": 1' + "0" * 100 + ".0}", True),
]  # fmt: skip


def test_json_that_is_hard_to_decode_is_judged_and_never_raises(dsn: str) -> None:
    some = [Row("k", 1, EPOCH, data, None) for _, data, _ in _HARD]
    found = run(judged(dsn, some, [encode(parse(text)) for text, _, _ in _HARD]))
    for place, (text, data, expected) in enumerate(_HARD):
        assert found[place][place] is expected, (text, data[:80])
        if data.count("[") + data.count("{") < 500:
            assert matches(parse(text), "k", data) is expected, (text, data[:80])


def test_json_nested_deeper_than_the_stack_limit_has_no_fields(dsn: str) -> None:
    async def ask() -> list[bool]:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("create temp table m (data json)")
            await connection.execute("insert into m select (repeat('[', 12000) || repeat(']', 12000))::json")
            # Simulates a reader with a deeper stack limit than the writer had.
            await connection.execute("set max_stack_depth = '1MB'")
            tests = [await connection.fetchval("select headrace_internal.where_condition($1)", encode(parse(text))) for text in
                     ("data.0 is null", "data.0 = 1", "data.0 is not null", "not data.x regex 'a'")]  # fmt: skip
            found: list[bool] = await connection.fetchval(f"select array[{', '.join(tests)}] from m")
            return found
        finally:
            await connection.close()

    assert run(ask()) == [True, False, False, True]


_NASTY = [
    "'", "''", "\\", "\\'", "'; drop table m; --", "$$", "$sql$", "$1", "%", "%s", "%L", "%1$s", "%%", "{}", "{a,b}", '"', '""', "/*", "--",
    "\n", "\x01", "E'\\\\'", "\\u0041", "null", "true", "ä", "🦦", "x' or true or key = 'x", ")", "::int", "j", "data",
]  # fmt: skip


def test_no_text_in_a_condition_is_run_as_sql(dsn: str) -> None:
    some = [
        *(Row(text, 1, EPOCH, json.dumps({text: text, "a": text}), json.dumps({text: text})) for text in _NASTY),
        *(Row("k", 1, EPOCH, json.dumps({text: "other"}, ensure_ascii=False), None) for text in _NASTY),
    ]
    wanted: list[Condition] = []
    for text in _NASTY:
        quoted = '"' + text.replace('"', '""') + '"'
        like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        literally = "".join(f"[{char}]" if char not in "\\^" else f"\\{char}" for char in text)
        wanted += [
            Compare(f"data.{quoted}", "=", text),
            Compare(f"headers.{quoted}", "!=", text),
            Compare("data.a", "<", text),
            Compare("key", "=", text),
            In("data.a", "in", (text, "x", True)),
            In("data.a", "not in", (text, "x", "y", "z")),
            In("key", "not in", (text, "x")),
            Null(f"data.{quoted}.{quoted}", "is null"),
            Match("data.a", "like", f"{like}%"),
            Match("data.a", "ilike", like),
            Match("data.a", "regex", f"^{literally}"),
            Match("key", "regex", literally),
        ]
    found = run(judged(dsn, some, [encode(condition) for condition in wanted]))
    for row, answers in zip(some, found, strict=True):
        for condition, answer in zip(wanted, answers, strict=True):
            assert answer is judge(condition, row), (condition, row)


_REFUSED = [
    ('{"field": "data.x", "op": "regex", "value": "(["}', "The regex '([' can't be used (invalid regular expression: brackets [] not balanced)"),
    ('{"field": "data.x", "op": "regex", "value": "(((a{200}){200}){200})"}', "can't be used (invalid regular expression"),
    ('{"field": "data.x", "op": "regex", "value": 5}', "must be a string, the pattern"),
    ('{"field": "data.x", "op": "like", "value": "a\\\\"}', "ends in a backslash that escapes nothing"),
    ('{"field": "data.x", "op": "like"}', "must be a string, the pattern"),
    ('{"field": "data.x", "op": "~", "value": "a"}', "the operator '~': write =, !=, <"),
    ('{"field": "data.x", "op": null, "value": "a"}', "has the operator NULL: write ="),
    ('{"field": "data.x", "op": "=", "value": null}', 'for null, write "is null"'),
    ('{"field": "data.x", "op": "="}', 'for null, write "is null"'),
    ('{"field": "data.x", "op": "=", "value": {"a": 1}}', "must be a string, a number, true or false"),
    ('{"field": "data.x", "op": "<", "value": true}', "true and false have no order"),
    ('{"field": "data.x", "op": "in", "value": []}', "a list of 1 to 1,000 values"),
    ('{"field": "data.x", "op": "in", "value": "a"}', "a list of 1 to 1,000 values"),
    ('{"field": "data.x", "op": "in", "value": [null]}', 'for null, write "is null"'),
    ('{"field": "data.x", "op": "is null", "value": 1}', 'takes no "value"'),
    ('{"field": "data.x", "op": "=", "value": 1e1000}', "at most 400 digits"),
    ('{"field": "x", "op": "=", "value": 1}', "can't be on the field 'x': write data.total"),
    ('{"field": "data; drop table m", "op": "=", "value": 1}', "can't be on the field"),
    ('{"field": "data.\\"a", "op": "=", "value": 1}', "can't be on the field"),
    ('{"field": ["data"], "op": "=", "value": 1}', 'must be text such as "data.total"'),
    ('{"field": "key", "op": "is null"}', "key is never null"),
    ('{"field": "key", "op": "=", "value": 1}', "key compares with strings only"),
    ('{"field": "seq", "op": "like", "value": "1"}', "seq compares with numbers only"),
    ('{"field": "seq", "op": "=", "value": "1"}', "seq compares with numbers only"),
    ('{"field": "created_at", "op": ">", "value": "tomorrow"}', "'tomorrow', which is no time"),
    ('{"field": "created_at", "op": ">", "value": "2030-02-30"}', "'2030-02-30', which is no time"),
    ('{"field": "data.x", "op": "=", "value": "a\\u0000"}', "can't be read as JSON by Postgres"),
    ('{"field": "data.x", "op": "=", "value": "\\ud800"}', "can't be read as JSON by Postgres"),
    ('{"and": []}', "a list of at least one condition"),
    ('{"or": {"field": "data.x", "op": "is null"}}', "a list of at least one condition"),
    ('{"and": [{"field": "data.x", "op": "is null"}], "or": []}', "A condition must be {"),
    ('{"not": [1]}', "A condition must be {"),
    ('"data.x = 1"', "A condition must be {"),
    ("{}", "A condition must be {"),
    ('{"not": ' * 60 + "1" + "}" * 60, "nested more than 40 deep"),
    ('{"field": "data.x", "op": "=", "value": "' + "x" * 200_000 + '"}', "longer than 200,000 bytes"),
]  # fmt: skip


@pytest.mark.asyncio
async def test_an_invalid_tree_is_refused_by_the_database_too(database: store.Database) -> None:
    for tree, said in _REFUSED:
        with pytest.raises(InvalidInput) as caught:
            await database.fetchval("select headrace_internal.where_condition($1)", tree)
        assert said in str(caught.value), tree[:80]


@pytest.mark.asyncio
async def test_a_consumer_without_a_condition_receives_everything(database: store.Database) -> None:
    assert await database.fetchval("select headrace_internal.where_condition(null)") == "true"
    assert await database.fetchval("select headrace_internal.where_condition('null')") == "true"


@pytest.mark.asyncio
async def test_the_largest_conditions_that_can_be_written_can_be_run(database: store.Database) -> None:
    deep: Condition = field("a") == 1
    for _ in range(31):
        deep = ~deep
    tests = [field("a") == number for number in range(500)]
    wide = tests[0]
    for test in tests[1:]:
        wide = wide | test
    listed = field("a").in_([f"{number:090}" for number in range(999)] + [1])
    for condition in (deep, wide, listed):
        test = await database.fetchval("select headrace_internal.where_condition($1)", encode(condition))
        found = await database.fetchval(
            f"""select {test} from (select '{{"a": 1}}'::json as data, null::json as headers) as m"""
        )
        assert found is judge(condition, Row("k", 1, EPOCH, '{"a": 1}', None))


@pytest.mark.asyncio
async def test_cheap_tests_are_evaluated_first(database: store.Database) -> None:
    text = "data.b > 5 and data.a = 'paid' and data.c regex 'x' and key = 'k' and seq > 5"
    test: str = await database.fetchval("select headrace_internal.where_condition($1)", encode(parse(text)))
    parts = ["seq >", "key ", "case when", """strpos(data::text, '"paid"')""", "{a}", "{b}", "{c}"]
    assert sorted(parts[2:], key=test.index) == parts[2:]
    assert max(map(test.index, parts[:2])) < test.index("case when")


def test_a_regex_is_one_of_postgresqls(dsn: str) -> None:
    some = _one_field(['"abc"', '"xa.b"', '"a word!"', '"axb"'])
    condition = parse("data.a regex '***=a.b' or data.a regex '\\mword\\M'")
    assert run(judged(dsn, some, [encode(condition)])) == [[False], [True], [True], [False]]
    with pytest.raises(asyncpg.PostgresError, match="quantifier operand invalid"):
        run(judged(dsn, some, [encode(parse("data.a regex '(?=a)b' or data.a regex '^*?+a'"))]))


@pytest.mark.asyncio
async def test_a_consumer_receives_all_messages_that_meet_its_condition(
    database: store.Database, declare: Declare
) -> None:
    where = (field("status") == "paid") & (field("total") > 100)
    reader = await declare(filters=("eu.>", "us.>"), where=where)
    # Half of a surrogate pair is valid JSON for Postgres, but not a valid string for any program.
    data = [
        '{"status": "paid", "total": 101}', '{"status": "paid", "total": 99}', '{"status": "paid", "total": 101, "x": "\\ud800"}',
        '{"status": "open", "total": 101}', "null", '{"status": "p\\u0061id", "total": 1e400000}', '{"total": 500}',
    ]  # fmt: skip
    await store.publish_many(database, "orders", [f"eu.{n}" for n in range(len(data))], data)
    await store.publish_many(database, "orders", ["asia.1", "us.1"], [data[0], data[0]])
    assert await reader.drain() == [1, 6, 9]
