"""The parts of a process that other users of the machine see: its command line, as in `ps`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.cli.commands.pg import _without_password
from headrace.embedded import EmbeddedPostgres
from tests.cli.conftest import Headrace, headrace

__all__ = ["headrace"]


@pytest.mark.process
def test_psql_gets_no_password_as_an_argument(
    headrace: Headrace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = tmp_path / "postgres"
    monkeypatch.setenv("HEADRACE_DATA", str(data))
    monkeypatch.setenv("HEADRACE_PG_PORT", str(port))
    monkeypatch.setenv("PGPASSWORD", "of another server")
    try:
        # psql's own shell shows the command line of its parent, which is psql.
        shown = headrace("pg", "psql", "--", "-At", "-c", "select 6 * 7", "-c", r"\! tr '\0' ' ' < /proc/$PPID/cmdline")
        password = _without_password(EmbeddedPostgres(data, port).url())[1]
    finally:
        EmbeddedPostgres(data, port).stop("immediate")
    assert shown.code == 0, shown
    assert shown.out.startswith("42\n"), shown  # it has logged in over TCP, which needs the password
    assert f"127.0.0.1:{port}" in shown.out
    assert password
    assert password not in shown.out


@pytest.mark.parametrize(
    ("url", "expected", "password"),
    [
        ("postgresql://a:b%40c@127.0.0.1:5432/d?x=y", "postgresql://a@127.0.0.1:5432/d?x=y", "b@c"),
        ("postgresql://a@/d?host=/tmp&port=1", "postgresql://a@/d?host=/tmp&port=1", None),
        ("postgresql://a:@[::1]/d", "postgresql://a@[::1]/d", ""),
    ],
)
def test_a_password_is_taken_out_of_a_url(url: str, expected: str, password: str | None) -> None:
    assert _without_password(url) == (expected, password)
