"""The program of docs/how-to/dead-letters.md runs, and its commands and requests are as it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.cli.main import call
from tests.runtime.running import running

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "dead-letters.md").read_text(encoding="utf-8")
COMMANDS = re.findall(
    r"^(headrace .*?)(?: >.*)?$", "\n".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)), re.MULTILINE
)


@pytest.fixture
def page(dsn: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    program: dict[str, Any] = {"__name__": "shop"}
    exec("\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)), program)
    return program


@pytest.mark.asyncio
async def test_the_program_hears_of_its_dead_letters_and_delivers_them_again(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    app: App = page["app"]
    async with running(app):
        for key, items in (("a", 0), ("b", 101), ("c", 5), ("d", 200)):
            await app.publish("orders", key, {"items": items})
        await app.idle()
        assert sorted(page["alerts"]) == [
            "ship gave up on a: nothing to ship",
            "ship gave up on b: 101 items are too many",
            "ship gave up on d: 200 items are too many",
        ]
        assert await page["redrive_all"]() == 2
    assert capsys.readouterr().out == "2 shop.NoStock\n1 headrace.Reject\n"


def test_each_command_of_the_page_takes_its_options(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a server they would be one request each, which is printed."""
    monkeypatch.setenv("HEADRACE_SERVER", "http://127.0.0.1:9")
    assert len(COMMANDS) >= 7
    for command in COMMANDS:
        capfd.readouterr()
        assert call([*shlex.split(command)[1:], "--as-curl"]) == 0, (command, capfd.readouterr())
        printed = capfd.readouterr().out
        assert ("/v1/jobs" if "--background" in command or " job " in command else "/dead_letters") in printed
