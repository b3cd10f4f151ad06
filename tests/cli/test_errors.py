"""Every error is printed in one sentence, with an exit code for its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import main
from headrace.model.errors import ConfigurationError, StoreFull, UnknownStream
from tests.cli.conftest import Headrace


def _is_one_sentence(text: str) -> bool:
    return text.startswith("headrace: ") and text.count("\n") == 1 and "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["strem"], 64, "strem"),
        (["stream", "lss"], 64, "lss"),
        (["stream", "info"], 64, "NAME"),
        (["pg", "stop", "--bogus"], 64, "--bogus"),
        (["publish", "orders", "--batch", "0"], 64, "--batch"),
        (["run", "service"], 64, "service:app"),
        (["publish", "orders", "no-such-file"], 66, "no-such-file"),
        (["stream", "ls", "--database", "postgresql://127.0.0.1:1/x"], 69, "127.0.0.1:1"),
        (["stream", "ls", "--database", "mysql://host/x"], 78, "postgresql://user:password@host:5432/database"),
        (["stream", "ls", "--database", "postgresql://host:port/x"], 78, "port"),
        (["pg", "url", "--port", "70000"], 78, "65535"),
        (["demo", "--history", "x"], 64, "--tree"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_an_exit_code(
    headrace: Headrace, arguments: list[str], code: int, expected: str
) -> None:
    ended = headrace(*arguments)
    assert ended.code == code, ended
    assert expected in ended.err
    assert _is_one_sentence(ended.err), ended


def test_an_unknown_stream_or_consumer(headrace: Headrace, dsn: str) -> None:
    for arguments in (["stream", "info", "nope"], ["consumer", "ls", "nope"], ["consumer", "info", "nope", "ship"]):
        ended = headrace(*arguments, "--database", dsn)
        assert ended.code == 66, ended
        assert "'nope'" in ended.err
        assert _is_one_sentence(ended.err)


def test_a_database_without_the_schema(headrace: Headrace, empty_dsn: str) -> None:
    ended = headrace("stream", "ls", "--database", empty_dsn)
    assert ended.code == 78
    assert "headrace migrate" in ended.err


def test_a_password_is_not_printed(headrace: Headrace) -> None:
    ended = headrace("stream", "ls", "--database", "postgresql://me:geheim@127.0.0.1:1/x")
    assert "geheim" not in ended.err


def test_a_data_directory_that_cannot_be(headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "file" / "postgres"))
    ended = headrace("stream", "ls")
    assert ended.code == 69
    assert _is_one_sentence(ended.err), ended


def _raise(error: BaseException) -> None:
    raise error


def test_errors_out_of_task_groups_are_printed_once_each(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ExceptionGroup(
        "", [StoreFull("It is full."), ExceptionGroup("", [StoreFull("It is full.")]), UnknownStream("x")]
    )
    monkeypatch.setattr(main, "_dispatch", lambda _: _raise(group))
    ended = headrace("run", "service:app")
    assert ended.code == StoreFull.exit_code
    assert ended.err == "headrace: It is full.\nheadrace: x\n"


def test_an_error_of_ours_does_not_hide_another(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ExceptionGroup("", [ConfigurationError("x"), RuntimeError("a bug")])
    monkeypatch.setattr(main, "_dispatch", lambda _: _raise(group))
    with pytest.raises(ExceptionGroup):
        main.call([])


def test_an_interrupt_has_the_exit_code_that_shells_know(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_dispatch", lambda _: _raise(KeyboardInterrupt()))
    assert headrace("stream", "ls").code == 130
