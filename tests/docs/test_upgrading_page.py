"""The commands of docs/upgrading.md run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.store.database.revisions import newest_revision

PAGE = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^headrace (.+)$", PAGE, re.MULTILINE)


def run(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    return int(ended.value.code or 0)


@pytest.mark.process
def test_the_commands_of_the_page_run(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE", empty_dsn)
    assert len(COMMANDS) == 5
    assert run("migrate --check") == 1
    assert run("migrate --to 77") == 78
    for command in COMMANDS:
        # The page has the number of the first release.
        assert run(re.sub(r"--to \d+", f"--to {newest_revision()}", command)) == 0, command
    assert run("migrate --check") == 0
    written = capsys.readouterr().out
    assert "Would apply migration 1 (headrace)" in written
    assert f"The schema has revision {newest_revision()}." in written
