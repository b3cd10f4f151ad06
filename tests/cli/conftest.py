"""Commands called in this process, which is fast, or as a process, for tests of signals."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import call
from headrace.server.options import Options
from tests.cli.processes import Commands
from tests.support.serving import serving

OURS = (
    "HEADRACE_DATABASE",
    "HEADRACE_SERVER",
    "HEADRACE_TOKEN",
    "HEADRACE_CA_FILE",
    "HEADRACE_DATA",
    "HEADRACE_LOG_LEVEL",
    "HEADRACE_PG_PORT",
)


class Ended:
    """The result of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


Headrace = Callable[..., Ended]


class Operator:
    """Calls commands on one database, and reports an unexpected exit code with the command's output."""

    def __init__(self, headrace: Headrace, dsn: str, *, over_http: bool = False) -> None:
        self._headrace = headrace
        self.dsn = dsn
        self.over_http = over_http

    def call(self, *words: object, code: int = 0) -> Ended:
        """Call a command that must end with `code`."""
        ended = self._headrace(*words)
        assert ended.code == code, (words, ended)
        return ended

    def out(self, *words: object, code: int = 0) -> str:
        """Return what the command prints."""
        return self.call(*words, code=code).out

    def json(self, *words: object, code: int = 0) -> Any:
        """Return what the command prints with --json, decoded."""
        return json.loads(self.out(*words, "--json", code=code))

    def refused(self, code: int, *words: object) -> str:
        """Return the one-sentence error of a command that prints nothing else and ends with `code`."""
        ended = self.call(*words, code=code)
        assert (ended.out, ended.err.count("\n")) == ("", 1), ended
        assert ended.err.startswith("headrace: ")
        assert "Traceback" not in ended.err
        return ended.err

    def send(self, stream: str, *messages: tuple[str, object]) -> None:
        """Send messages in one call."""
        lines = "".join(json.dumps({"key": key, "data": data}) + "\n" for key, data in messages)
        with tempfile.NamedTemporaryFile("w", suffix=".ndjson") as file:
            file.write(lines)
            file.flush()
            self.call("publish", stream, file.name)


@pytest.fixture(autouse=True)
def _nothing_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the user's settings and embedded Postgres."""
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "no-postgres-here"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def headrace(capfd: pytest.CaptureFixture[str]) -> Headrace:
    """Call `headrace` with these arguments in this process."""

    def run(*arguments: object) -> Ended:
        capfd.readouterr()
        code = call([str(argument) for argument in arguments])
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Run `headrace` as processes in `tmp_path`. Those still running at the end are killed."""
    with Commands(tmp_path) as commands:
        yield commands


@pytest.fixture
def operator(
    headrace: Headrace, dsn: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    """Commands at a separate terminal, all for the same fresh database.

    With the parameter "server" they go to a server over HTTP. See `BOTH_WAYS`.
    """
    if getattr(request, "param", "database") == "database":
        monkeypatch.setenv("HEADRACE_DATABASE", dsn)
        yield Operator(headrace, dsn)
        return
    with serving(dsn, Options(capture=False, transforms=("shop",))) as url:  # the test reports captures itself
        monkeypatch.setenv("HEADRACE_SERVER", url)
        yield Operator(headrace, dsn, over_http=True)


BOTH_WAYS = pytest.mark.parametrize("operator", ["database", "server"], indirect=True)
"""Parameter for tests that hold for a database and for a server in front of it."""
