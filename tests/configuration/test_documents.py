"""Files of YAML and JSON are read with the places of their values. Needs no database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.admin.configuration import MAX_BYTES, Problems, declared, documents, read_documents
from headrace.admin.configuration.documents import write_document
from headrace.admin.configuration.exporting import escaped
from headrace.model.errors import ConfigurationError

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=20) | st.sampled_from(
    [
        "1e5",
        "08",
        "no",
        "null",
        "${A}",
        "$${A}",
        "1:30",
        "~",
        "",
        "true",
        "2026-01-01",
        "0x1F",
        "- a",
        "a: b",
        " a ",
        "a\nb",
        "\u2028",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(text: str, **environment: str) -> Any:
    problems = Problems()
    (root,) = read_documents(text, "a.yaml", environment, problems)
    problems.raise_any()
    return root.plain()


def refused(text: str, **environment: str) -> str:
    def attempt() -> None:
        problems = Problems()
        documents = read_documents(text, "a.yaml", environment, problems)
        problems.raise_any()
        declared(documents)

    with pytest.raises((ConfigurationError, ExceptionGroup)) as raised:
        attempt()
    errors = raised.value.exceptions if isinstance(raised.value, ExceptionGroup) else [raised.value]
    return "\n".join(map(str, errors))


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert read(write_document(escaped(value))) == value


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1), st.sampled_from([None, 2, "\t"]), st.booleans())
def test_json_is_read_as_json(value: dict[str, Any], indent: Any, ascii_only: bool) -> None:
    assert read(json.dumps(escaped(value), indent=indent, ensure_ascii=ascii_only)) == value


def test_words_that_other_readers_take_for_booleans_stay_texts() -> None:
    assert read("{a: no, b: on, c: 1:30, d: 2026-01-01, e: 1_000}") == {
        "a": "no", "b": "on", "c": "1:30", "d": "2026-01-01", "e": "1_000",
    }  # fmt: skip


def test_variables_are_filled_in_and_can_be_escaped() -> None:
    assert read("a: x-${ONE}-${ONE}-$${TWO}-$THREE", ONE="1") == {"a": "x-1-1-${TWO}-$THREE"}
    assert read("a: ${NUMBER}", NUMBER="null") == {"a": "null"}, "a secret never becomes another type"


def test_merged_mappings_give_way_to_own_keys() -> None:
    assert read("b: &b {x: 1, y: 1}\na: {<<: *b, y: 2}")["a"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2", "a.yaml:2:1: The key 'a' is given twice, first in line 1."),
        ("streams: {orders: {retain_upto: 3d}}", "a.yaml:1:20: The stream 'orders' has no field `retain_upto`. Did you mean `retain_up_to`?"),
        ("a: ${UNSET}", "a.yaml:1:4: The variable UNSET is not set"),
        ("a: ${un set}", "is not a reference"),
        ("a: [", "a.yaml:1:5: This is not valid YAML"),
        ("a: !!python/object:os.system x\n", "has no field `a`"),
        ("[1, 2]", "A configuration must be a mapping"),
        ("a: &a [x, *a]", "nested more than 32 deep"),
        ("&a [" * 5_000, "a.yaml"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"a": "\\u0000"}', "NUL"),
        ("streams: {orders: {max_storage: lots}}", "not a size"),
        ("streams: {orders: {consumers: {a: {filter: a, filters: b}}}}", "another name of a setting"),
        ("streams: {orders: {consumers: {a: {push: {url: x, tiemout: 1}}}}}", "`push` has no field `tiemout`. Did you mean `timeout`?"),
        ("sources: {a: {kind: kafka}}", "must be 'webhook' or 'postgres'"),
        ("sources: {a: {kind: postgres, stream: x}}", "needs `tables`"),
        ("tokens: {a: {scopes: publish}}", "must be a list"),
        ("grants: {r: {publish: orders}}", "must be a list of streams, or all"),
        ("grants: {r: {publish: ['']}}", "has a stream without a name"),
        ("name: a\n---\nname: b", "has the name 'a' already"),
        ("streams: {o: {dedupe_window: 1m}}\n---\nstreams: {o: {dedupe_window: 2m}}", "is set already, in a.yaml:1:30"),
        ("tokens: {a: {scopes: [admin]}}\n---\ntokens: {a: {scopes: [admin]}}", "is declared already"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, expected: str) -> None:
    assert expected in refused(text)


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "more than 100,000 values" in refused("\n".join(lines))


def test_a_long_text_that_aliases_repeat_is_refused() -> None:
    assert "more than 8,000,000 characters" in refused(f"a: &a {'é' * 100_000}\nb: [{'*a,' * 100}]")


def test_a_large_file_is_refused_before_all_of_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 10)
    assert "has more than 10 values" in refused(f"[{'1,' * 30}" + "{")


@pytest.mark.parametrize("start", ["é", "\ufeff", " "])
def test_a_file_that_was_cut_at_the_limit_is_refused(start: str) -> None:
    with pytest.raises(ConfigurationError, match="larger than 4,000,000 bytes"):
        documents.decoded((start + " " * MAX_BYTES).encode()[: MAX_BYTES + 1], "a.yaml")


def test_files_say_together_what_a_stream_is() -> None:
    problems = Problems()
    documents = read_documents(
        "streams: {o: {retain_up_to: 1d}}\n---\nstreams: {o: {consumers: {a: {}}}}", "a.yaml", {}, problems
    )
    found = declared(documents)
    assert set(found.objects) == {("stream", ("o",)), ("consumer", ("o", "a"))}
