"""Commands called in this process, which is quick, or as a process of their own, where signals are the point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.main import call
from tests.cli.processes import Commands

OURS = ("HEADRACE_DATABASE", "HEADRACE_DATA", "HEADRACE_LOG_LEVEL", "HEADRACE_PG_PORT")


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


Headrace = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _nothing_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither his settings, nor his embedded Postgres."""
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "no-postgres-here"))


@pytest.fixture
def headrace(capfd: pytest.CaptureFixture[str]) -> Headrace:
    """`headrace` with these arguments, in this process."""

    def run(*arguments: object) -> Ended:
        capfd.readouterr()
        code = call([str(argument) for argument in arguments])
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """`headrace` as processes of their own, in `tmp_path`; those still alive at the end are killed."""
    with Commands(tmp_path) as commands:
        yield commands
