"""`headrace schedule` on real Postgres."""

from __future__ import annotations

import re

import pytest

from headrace import App, store
from tests.cli.conftest import Operator
from tests.support import servers


@pytest.fixture
def reports(operator: Operator, dsn: str) -> None:
    """A schedule that an app has declared and computed."""
    app = App()
    app.every("0 9 * * 1-5", "reports", zone="Europe/Berlin", data={"kind": "daily"}, missed="catch_up")

    async def declare() -> None:
        async with servers.opened(dsn) as database:
            await store.create_stream(database, "reports")
            await store.declare_schedule(database, app.schedules[0].spec)

    servers.run(declare())


def test_schedules_are_listed_and_shown(operator: Operator, reports: None) -> None:
    table = operator.out("schedule", "ls")
    assert re.search(r"^reports +reports +0 9 \* \* 1-5 +Europe/Berlin +running +– +– +0$", table, re.MULTILINE), table
    shown = operator.out("schedule", "info", "reports")
    assert '{"kind":"daily"}' in shown
    assert "catch up with 100 at most" in shown
    assert operator.json("schedule", "info", "reports")["settings"]["every"] == "0 9 * * 1-5"


def test_a_schedule_is_paused_resumed_run_and_removed(operator: Operator, reports: None) -> None:
    assert "Paused" in operator.out("schedule", "pause", "reports")
    assert operator.json("schedule", "info", "reports")["state"] == "paused"
    assert "is paused" in operator.refused(65, "schedule", "run", "reports")
    assert "Resumed" in operator.out("schedule", "resume", "reports")
    assert "Requested" in operator.out("schedule", "run", "reports")
    assert "Deleted" in operator.out("schedule", "rm", "reports", "--yes")
    assert "headrace schedule ls" in operator.refused(66, "schedule", "info", "reports")
    assert "app.every" in operator.call("schedule", "ls").err
