"""Tables for people contain no terminal control sequences, and their lines fit the terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli.output.tables import print_pairs, print_table
from headrace.model.text.printing import printable
from headrace.model.text.sizes import format_size

NASTY = "a\x1b[2Jb\rc\nd\x9be\u202ef\x00g\udc80"


@given(st.text())
def test_every_text_is_printed_as_one_harmless_line(text: str) -> None:
    assert printable(text).isprintable()


def test_control_characters_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key", "data…"), [(NASTY, NASTY)])
    print_pairs([("key", NASTY), ("traceback", "one\n\ttwo")])
    output = capsys.readouterr().out
    assert r"a\x1b[2Jb\rc\nd\x9be\u202ef\x00g\udc80" in output
    assert all(char.isprintable() or char == "\n" for char in output)
    assert [line.split() for line in output.splitlines()[-2:]] == [["traceback", "one"], ["two"]]


def test_markup_is_nothing_special(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key",), [("[red]x[/red]",), (":smile:",)])
    assert capsys.readouterr().out == "key\n[red]x[/red]\n:smile:\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("data", ["x" * 5000, "漢字" * 3000, "e\u0301" * 4000, '{"a": 1}'])
def test_on_a_terminal_data_is_cut_to_its_line(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in (("COLUMNS", "60"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    print_table(("seq#", "key", "data…"), [("1", "orders.us", data), ("12,345", "k", "short")])
    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert len(lines) == 3
    assert all(cell_len(line) <= 60 for line in lines), lines
    assert lines[1].endswith("…") == (len(data) > 100)
    assert lines[2].split() == ["12,345", "k", "short"]


def test_columns_that_must_not_be_cut_are_not_folded_either(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    print_table(("key", "data…"), [("orders.us.a-very-long-key-that-someone-copies", "x" * 100)])
    assert "orders.us.a-very-long-key-that-someone-copies" in terminal.getvalue().splitlines()[1]


def test_in_a_pipe_nothing_is_cut_or_padded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key", "data…"), [("a", "x" * 5000), ("b", "y")])
    assert capsys.readouterr().out.splitlines()[1:] == [f"a    {'x' * 5000}", "b    y"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (5 * 10**15, "5000 TB"),
        (8192, "8.19 kB"),
        (999_999, "1 MB"),
        (123_456_789, "123 MB"),
    ],
)
def test_sizes_for_people(count: int, expected: str) -> None:
    assert format_size(count) == expected
