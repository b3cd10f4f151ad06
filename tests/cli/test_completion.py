"""`headrace completion` prints scripts that shells accept, with all commands in them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Headrace

_CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_every_shell(headrace: Headrace, shell: str, tmp_path: Path) -> None:
    ended = headrace("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    for word in ("dead-letters", "redrive", "republish", "deliver-policy", "last_per_key"):
        assert word in ended.out
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(ended.out)
        subprocess.run([*_CHECKS[shell], script], check=True)


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("headrace cons", "consumer"),
        ("headrace consumer dead-letters ", "ls info export redrive purge"),
        ("headrace consumer add orders x --on-exhausted ", "dead_letter block drop"),
        ("headrace stream view orders --fi", "--first --filter"),
    ],
)
@pytest.mark.long
def test_bash_completes_with_it(headrace: Headrace, line: str, offered: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(headrace("completion", "bash").out)
    words = [f"{word!r}" for word in line.split(" ")]
    asked = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _headrace; echo ${{COMPREPLY[@]}}"
    answer = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True).stdout
    assert set(answer.split()) == set(offered.split())


def test_another_shell_is_refused(headrace: Headrace) -> None:
    ended = headrace("completion", "csh")
    assert ended.code == 64
    assert '"bash", "zsh", "fish"' in ended.err
