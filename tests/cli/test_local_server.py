"""Without a server, a database or a context, a command prefers the server on this machine to the embedded Postgres."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli.connection import local_server
from headrace.cli.connection.local_server import preferred_server
from headrace.model.errors import ConfigurationError
from headrace.server.options import Options
from tests.cli.conftest import Headrace
from tests.support.serving import serving


@pytest.fixture(autouse=True)
def _nothing_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADRACE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def port(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server, which is also the one that the settings name."""
    with serving(dsn, Options(capture=False)) as url:
        found = int(url.rpartition(":")[2])
        monkeypatch.setenv("HEADRACE_PORT", str(found))
        yield found


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, answer: bytes, pause: float | None = None) -> Iterator[int]:
    """Another program on the port. It answers with these bytes, or with one after each pause, in seconds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = int(listening.getsockname()[1])
        monkeypatch.setenv("HEADRACE_PORT", str(found))
        over = threading.Event()

        def answer_one() -> None:
            connection = listening.accept()[0]
            with connection:
                connection.recv(1000)
                for piece in [answer] if pause is None else [answer[at : at + 1] for at in range(len(answer))]:
                    connection.sendall(piece)
                    if pause is not None and over.wait(pause):
                        break

        thread = threading.Thread(target=answer_one, name="another program", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join(10)


def test_the_server_is_preferred_and_standard_error_says_so(headrace: Headrace, port: int) -> None:
    assert headrace("stream", "add", "orders").code == 0
    ended = headrace("stream", "ls", "--json")
    assert [one["name"] for one in json.loads(ended.out)] == ["orders"]
    assert ended.err == f"headrace: Using the server at http://localhost:{port}.\n"


def test_a_database_a_server_or_a_context_wins_silently(headrace: Headrace, port: int, dsn: str) -> None:
    for words in (["--database", dsn], ["--server", f"http://127.0.0.1:{port}"]):
        assert headrace("stream", "ls", "--json", *words).err == ""
    assert headrace("context", "add", "here", "--database", dsn).code == 0
    assert headrace("context", "use", "here").code == 0
    assert headrace("stream", "ls", "--json").err == ""


@pytest.mark.parametrize("name", ["HEADRACE_DATABASE", "HEADRACE_SERVER"])
def test_a_variable_wins_silently(headrace: Headrace, dsn: str, port: int, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, dsn if name == "HEADRACE_DATABASE" else f"http://127.0.0.1:{port}")
        assert headrace("stream", "ls", "--json").err == ""


@pytest.mark.parametrize("setting", ['database = "postgresql://localhost/x"', 'data = "here"', None])
def test_a_setting_of_the_embedded_postgres_wins_silently(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], setting: str | None
) -> None:
    if setting is None:
        monkeypatch.setenv("HEADRACE_DATA", "somewhere")
    else:
        Path("pyproject.toml").write_text(f"[tool.headrace]\n{setting}\n")
    assert preferred_server() is None
    assert capsys.readouterr().err == ""


def test_a_server_that_needs_a_token_gets_none_unasked(
    headrace: Headrace, port: int, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = headrace("token", "add", "t", "--scope", "admin", "--json", "--database", dsn)
    assert token.code == 0
    secret = json.loads(token.out)["token"]
    monkeypatch.setenv("HEADRACE_TOKEN", secret)
    ended = headrace("stream", "ls", "--json")
    assert (ended.code, ended.out) == (78, "")
    assert "HEADRACE_SERVER" in ended.err
    monkeypatch.setenv("HEADRACE_SERVER", f"http://localhost:{port}")
    assert headrace("stream", "ls", "--json").code == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"hello\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>", b'HTTP/1.1 200 OK\r\n\r\n{"data": []}', b"\xff" * 100_000,
        b'HTTP/1.1 404 Not Found\r\n\r\n{"code": 5, "message": "no"}', b'HTTP/1.1 401 No\r\n\r\n{"code":"unauthorized"}',
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 10_000,
    ],
)  # fmt: skip
def test_another_program_on_the_port_is_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes
) -> None:
    with answering(monkeypatch, answer) as port:
        assert preferred_server() is None
    err = capsys.readouterr().err
    assert err.startswith(f"headrace: Using the embedded Postgres, since localhost:{port} ")


def test_a_slow_program_holds_up_no_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_server, "TIMEOUT", 0.1)
    for answer in (b"x", b"HTTP/1.1 200 OK\r\n" + b"x" * 6000):
        with answering(monkeypatch, answer, 60 / len(answer)):
            assert preferred_server() is None
            assert any(thread.name == "another program" for thread in threading.enumerate()), "it has ended"
    assert "since localhost:" in capsys.readouterr().err


def test_a_server_without_its_database_is_preferred_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command then reports what the server reports, instead of the state of another database."""
    answer = b'HTTP/1.1 503 No\r\n\r\n{"summary":"The database is unavailable.","code":"unavailable"}'
    with answering(monkeypatch, answer) as port:
        server = preferred_server()
    assert server is not None
    assert server.url == f"http://localhost:{port}"


def test_without_a_server_it_is_the_embedded_postgres(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setenv("HEADRACE_PORT", str(port))
    assert preferred_server() is None
    assert capsys.readouterr().err == "headrace: Using the embedded Postgres.\n"
    monkeypatch.setenv("HEADRACE_PORT", "0")  # any free one, so it is not known
    asked = []
    monkeypatch.setattr(local_server, "_ask", lambda server: (asked.append(server.url), (None, ""))[1])
    assert preferred_server() is None
    assert asked == ["http://localhost:7376"]


@pytest.mark.parametrize("words", ["migrate", "token open --yes", "export", "grant ls", "run shop:app"])
def test_commands_that_need_the_database_use_no_server(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def never() -> None:
        raise AssertionError("it looks for a server")

    monkeypatch.setattr("headrace.cli.connection.connect.preferred_server", never)
    monkeypatch.setenv("HEADRACE_DATA", os.devnull)
    ended = headrace(*words.split())
    assert "it looks for a server" not in ended.err
    assert ended.code not in (0, 64), ended  # the embedded Postgres can't be there


def test_an_unusable_setting_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PORT", "many")
    with pytest.raises(ConfigurationError, match="HEADRACE_PORT"):
        preferred_server()
