"""The file of docs/how-to/configuration-as-code.md is applied, and the commands of the page run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from headrace.cli.main import call

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "configuration-as-code.md").read_text(encoding="utf-8")
FILES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^headrace (.+)$", PAGE, re.MULTILINE)


def test_the_commands_of_the_page_run(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("HEADRACE_DATABASE", dsn), ("HOOK_TOKEN", "h"), ("STRIPE_SECRET", "s")):
        monkeypatch.setenv(name, value)
    Path("headrace.yaml").write_text(FILES[0])
    assert len(COMMANDS) == 7
    for command in COMMANDS:
        assert call(shlex.split(command)) == 0, command
    assert "checkout=hr_" in capsys.readouterr().out
    changed = FILES[0].replace("30d", "7d").replace(".us.", ".eu.")
    Path("headrace.yaml").write_text(changed)
    assert call(["plan", "headrace.yaml"]) == 0
    (shown,) = re.findall(r"```\n(~.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == shown
