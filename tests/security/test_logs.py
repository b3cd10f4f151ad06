"""Keys, errors and other texts of strangers that try to forge lines of the log, or to control a terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.cli.main import call
from headrace.cli.output.json_output import print_json
from headrace.cli.output.logs import JsonFormatter, TextFormatter
from headrace.cli.output.stderr import print_notice
from headrace.cli.output.tables import print_pairs, print_table
from headrace.model.errors import InvalidInput
from headrace.model.log import Event, field_text

EVIL = "k\x1b[2J\x9b31m\x7f\r\n12:00:00.000 ERROR   headrace: forged\u2028\u202egnp.exe\u2066\x85\x07"

texts = st.one_of(
    st.text(),
    st.text(
        st.sampled_from('a "\\=\n\r\t\x1b\x7f\x85\x9b\u2028\u2029\u202e\u200f\ufeff\u00ad\u0600\U000e0041\U0001bca0é')
    ),
)


def controls(text: str) -> list[str]:
    """The characters that should have been escaped."""
    return [char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")]


def record(message: str, *, event: bool = True, raised: Exception | None = None, **fields: Any) -> logging.LogRecord:
    shown: Any = Event(message, fields) if event else message
    made = logging.LogRecord("headrace", logging.WARNING, __file__, 1, shown, (), None)
    vars(made).update(fields, **({"event": message} if event else {}))
    if raised is not None:
        try:
            raise raised
        except Exception:
            made.exc_info = sys.exc_info()
    return made


@given(texts)
@example(EVIL)
def test_a_value_is_one_line_of_text_and_one_line_of_json(value: str) -> None:
    made = record("message failed", stream="orders", consumer=value, key=value, error=value)
    for line in (TextFormatter().format(made), str(made.msg), JsonFormatter().format(made)):
        assert controls(line) == []
        assert "\n" not in line
    fields = json.loads(JsonFormatter().format(made))
    if not any(unicodedata.category(char) == "Cs" for char in value):
        assert (fields["key"], fields["error"]) == (value, value)


@given(texts)
@example('x" consumer="forged')
@example("x\\")
def test_a_value_is_no_second_field(value: str) -> None:
    shown = field_text(value)
    if " " in shown or '"' in shown:
        assert shown[0] == shown[-1] == '"'
        inside = shown[1:-1].replace("\\\\", "")
        assert inside.count('"') == inside.count('\\"')
        assert not inside.replace('\\"', "").endswith("\\")


@given(texts)
@example(EVIL)
def test_no_further_line_of_a_record_looks_like_a_record(value: str) -> None:
    for made in (
        record(value, event=False),
        record("failed", raised=ValueError(value)),
        record("failed", traceback=f"Traceback\nValueError: {value}"),
    ):
        for line in (TextFormatter().format(made), str(made.msg) if isinstance(made.msg, Event) else ""):
            assert controls(line) == []
            assert all(other.startswith("  ") for other in line.split("\n")[1:])


@given(texts)
@example(EVIL)
def test_output_has_no_control_characters(value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        out, errors = io.StringIO(), io.StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", errors)
        print_table(("key", "data…"), [(value, value)])
        assert len(out.getvalue().splitlines()) == 2
        print_pairs([("error", value)])
        print_notice(value)
        plain = value.encode("utf-8", "replace").decode()
        at = out.tell()
        print_json({"key": plain})
        assert json.loads(out.getvalue()[at:]) == {"key": plain}
    assert controls(out.getvalue() + errors.getvalue()) == []


def test_an_error_of_a_server_is_printed_without_its_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise InvalidInput(f"The key {EVIL} is invalid.")

    monkeypatch.setattr("headrace.cli.main._dispatch", fail)
    assert call(["stream", "ls"]) == InvalidInput.exit_code
    assert controls(capsys.readouterr().err) == []
