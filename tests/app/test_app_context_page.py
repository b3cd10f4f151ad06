"""The program of the documentation page about context runs and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace import App, ConfigurationError
from tests.runtime.running import dead_letters, work_off

PAGE = Path(__file__).parents[2] / "docs" / "context.md"


@pytest.fixture
def app(dsn: str, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    program: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)), program)
    found: App = program["app"]
    return found


@pytest.mark.asyncio
async def test_the_program_ships_orders_that_are_in_stock(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    async with app:
        await app.database.fetchval("create table stock (item text primary key, count int)")
        await app.database.fetchval("insert into stock values ('nut', 3)")
        await app.preflight()
        await work_off(app, ("a", {"item": "nut", "count": 2}), ("b", {"item": "nut", "count": 2}))
        assert await app.database.fetchval("select count from stock") == 1
        (letter,) = await dead_letters(app, "ship")
    assert letter.reason == "rejected"
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"ship failed: {letter.error}",
        "ship handled 1",
    ]


@pytest.mark.asyncio
async def test_it_does_not_start_where_the_shop_is_not_set_up(app: App) -> None:
    with pytest.raises(ConfigurationError, match="the_shop_is_set_up: it returned False"):
        await app.preflight()
