"""The help texts of commands, with examples that work."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.metadata import version

import pytest

from headrace.cli.groups import EXAMPLES
from headrace.cli.tree import build
from tests.cli.conftest import Headrace


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_a_command_are_understood_and_fit_a_terminal(command: str) -> None:
    for line in EXAMPLES[command].replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        assert words[: 1 + len(command.split())] == ["headrace", *command.split()]
        build().parse_args(words[1:], exit_on_error=False, print_error=False)
    assert max(map(len, EXAMPLES[command].splitlines())) <= 78


@pytest.mark.parametrize("command", ["serve", "observe", "token add", "source webhook add"])
def test_help_ends_with_the_examples(headrace: Headrace, command: str) -> None:
    ended = headrace(*command.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    shown = [line.strip() for line in ended.out.partition("For example:\n")[2].splitlines()]
    assert shown == [line.strip() for line in EXAMPLES[command].splitlines()]


def test_a_group_of_commands_lists_its_exit_codes(headrace: Headrace) -> None:
    for group in ("stream", "consumer", "source", "token", "context"):
        assert "Exit codes:" in headrace(group, "--help").out


@pytest.mark.process
def test_the_command_runs_as_a_module() -> None:
    ended = subprocess.run([sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, version("headrace") + "\n", "")
