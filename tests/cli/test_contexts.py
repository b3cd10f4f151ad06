"""The choice of server or database of a command, from options, the environment and contexts, in this order."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from headrace.cli.connection.backend import Backend
from headrace.client import Server
from headrace.model.errors import ConfigurationError
from tests.cli.conftest import Headrace

PROD = "https://prod.example.com"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of contexts."""
    return tmp_path / "config" / "headrace" / "contexts.json"


def _refused(headrace: Headrace, code: int, *words: str) -> str:
    ended = headrace(*words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1), ended
    assert "Traceback" not in ended.err
    return ended.err


def _added(headrace: Headrace, *words: str) -> None:
    assert headrace("context", "add", *words).code == 0


# --- precedence


def test_an_option_counts_before_the_environment_and_that_before_the_context(headrace: Headrace) -> None:
    _added(headrace, "prod", "--server", PROD, "--token", "of-prod")
    headrace("context", "use", "prod")
    nothing = {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}
    assert Backend().resolve(nothing) == Server(PROD, "of-prod")
    named = {**nothing, "HEADRACE_SERVER": "http://env"}
    assert Backend().resolve(named) == Server("http://env")
    assert Backend(server="http://option").resolve(named) == Server("http://option")
    assert Backend(database="postgresql://x").resolve(named) == "postgresql://x"
    stored = {**nothing, "HEADRACE_DATABASE": "postgresql://env"}
    assert Backend().resolve(stored) == "postgresql://env"
    assert Backend(server="http://option").resolve(stored) == Server("http://option")


def test_a_token_is_only_sent_to_the_server_that_it_is_for(headrace: Headrace) -> None:
    _added(headrace, "prod", "--server", PROD, "--token", "of-prod")
    headrace("context", "use", "prod")
    mine = {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}
    assert Backend(server="http://elsewhere").resolve(mine) == Server("http://elsewhere")
    assert Backend(token="mine").resolve(mine) == Server(PROD, "mine")
    assert Backend().resolve({**mine, "HEADRACE_TOKEN": "env", "HEADRACE_CA_FILE": "/x"}) == Server(PROD, "env", "/x")
    assert Backend(token="mine").resolve({**mine, "HEADRACE_TOKEN": "env"}) == Server(PROD, "mine")


def test_a_context_may_be_a_database(headrace: Headrace) -> None:
    _added(headrace, "here", "--database", "postgresql://localhost/x")
    headrace("context", "use", "here")
    assert Backend().resolve({"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}) == "postgresql://localhost/x"


def test_without_anything_it_is_the_embedded_postgres(tmp_path: Path) -> None:
    assert Backend().resolve({"XDG_CONFIG_HOME": str(tmp_path)}) is None


def test_a_command_goes_by_the_context_in_use(headrace: Headrace, dsn: str) -> None:
    _added(headrace, "here", "--database", dsn)
    assert headrace("context", "use", "here").out == "The context 'here' is in use.\n"
    assert headrace("stream", "add", "orders").code == 0
    assert [one["name"] for one in json.loads(headrace("stream", "ls", "--json", "--database", dsn).out)] == ["orders"]
    assert headrace("context", "use", "--none").code == 0
    assert headrace("stream", "ls", "--server", "http://127.0.0.1:1").code == 69


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--server http://x --database postgresql://x", "not both"),
        ("--database postgresql://x --token t", "--token"),
        ("--database postgresql://x --ca-file f", "--ca-file"),
        ("--token t", "--server"),
        ("--database postgresql://x --as-curl", "--as-curl"),
    ],
)
def test_options_that_exclude_each_other(headrace: Headrace, words: str, expected: str) -> None:
    assert expected in _refused(headrace, 64, "stream", "ls", *words.split())


def test_variables_that_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="Unset one"):
        Backend().resolve({"HEADRACE_SERVER": "http://x", "HEADRACE_DATABASE": "postgresql://x"})


def test_a_server_that_cannot_be_is_one_sentence(headrace: Headrace) -> None:
    assert "http://localhost:7376" in _refused(headrace, 78, "stream", "ls", "--server", "localhost:7376")


# --- add, use, ls, rm


def test_tokens_are_kept_in_a_private_file_and_are_not_shown(headrace: Headrace, file: Path) -> None:
    before = os.umask(0)  # as permissive as possible
    try:
        _added(headrace, "prod", "--server", PROD, "--token", "geheim")
    finally:
        os.umask(before)
    _added(headrace, "here", "--database", "postgresql://me:geheim@localhost/x")
    headrace("context", "use", "prod")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
    table = headrace("context", "ls")
    listed = headrace("context", "ls", "--json")
    assert "geheim" not in table.out + listed.out
    assert [line.split() for line in table.out.splitlines()[1:]] == [
        ["here", "postgresql://me:…@localhost/x"],
        ["*", "prod", PROD, "…"],
    ]
    assert json.loads(listed.out)[1] == {
        "name": "prod", "current": True, "server": PROD, "token": "…", "ca_file": None, "database": None,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["of-file", " of-file\n"])
def test_a_token_may_come_from_a_file(headrace: Headrace, tmp_path: Path, file: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    _added(headrace, "prod", "--server", PROD, "--token-file", str(tmp_path / "token"))
    assert json.loads(file.read_text())["contexts"]["prod"]["token"] == "of-file"


def test_removing_the_one_in_use_leaves_none_in_use(headrace: Headrace, file: Path) -> None:
    _added(headrace, "prod", "--server", PROD)
    headrace("context", "use", "prod")
    assert headrace("context", "rm", "prod").code == 0
    assert json.loads(file.read_text()) == {}
    assert "There are no contexts" in headrace("context", "ls").err


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (64, "add x", "--server or --database"),
        (64, "add x --server http://x --database postgresql://x", "either --server or --database"),
        (64, "add x --server http://x --token a --token-file b", "not both"),
        (64, "add x --database postgresql://x --token a", "need --server"),
        (64, "use", "--none"),
        (64, "use prod --none", "--none"),
        (64, "add", "NAME"),
        (65, "add a/b --server http://x", "'a/b'"),
        (65, "add prod --server http://x", "'prod'"),
        (66, "use nope", "The contexts are: prod"),
        (66, "rm nope", "The contexts are: prod"),
        (66, "add x --server http://x --token-file /no/such/file", "/no/such/file"),
        (66, "add x --server http://x --token-file /dev/null", "/dev/null"),
        (78, "add x --server ftp://x", "http://localhost:7376"),
        (78, "add x --server http://me:geheim@x", "token"),
    ],
)
def test_invalid_input_is_refused_and_changes_nothing(
    headrace: Headrace, file: Path, code: int, words: str, expected: str
) -> None:
    _added(headrace, "prod", "--server", PROD)
    before = file.read_text()
    error = _refused(headrace, code, "context", *words.split())
    assert expected in error
    assert "geheim" not in error
    assert file.read_text() == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"contexts": {"x": {}}}',
        '{"contexts": {"x": {"server": 5}}}',
        '{"current": "x"}',
        '{"more": 1}',
        "\xff",
    ],
)
def test_a_broken_file_is_reported_and_not_overwritten(headrace: Headrace, file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))
    for words in (["stream", "ls"], ["context", "ls"], ["context", "add", "x", "--server", "http://x"]):
        assert str(file) in _refused(headrace, 78, *words)
    assert file.read_bytes() == text.encode("latin-1")


def test_a_command_with_a_server_option_needs_no_contexts(headrace: Headrace, file: Path, dsn: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("{")
    assert headrace("stream", "ls", "--database", dsn).code == 0


def test_a_directory_that_is_not_writable(headrace: Headrace, file: Path) -> None:
    file.parent.parent.write_text("a file, and no directory")
    assert str(file) in _refused(headrace, 73, "context", "add", "x", "--server", "http://x")
