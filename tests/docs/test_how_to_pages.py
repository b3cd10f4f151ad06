"""The examples of docs/how-to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from headrace import App, store
from headrace.admin import Admin
from headrace.cli.groups import schedule as schedule_commands
from tests.runtime.running import eventually, make_due, parked

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The blocks of a page in a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    assert found, f"the page {name} has no such blocks any more"
    return found


def run(name: str) -> dict[str, Any]:
    """Run the Python of a page from top to bottom. Returns its names."""
    names: dict[str, Any] = {"__name__": f"how_to_{name}"}
    exec("\n".join(blocks(name, "python")), names)
    return names


@pytest.mark.asyncio
async def test_periodic(database: store.Database) -> None:
    app: App = run("periodic")["app"]
    for schedule in app.schedules:
        await store.create_stream(database, schedule.spec.stream)
        await store.declare_schedule(database, schedule.spec)
    assert [one.name for one in await store.schedules(database)] == ["checks", "reports"]
    assert len(app.consumers) == 1


@pytest.mark.asyncio
async def test_expire_messages(dsn: str, database: store.Database) -> None:
    names = run("expire-messages")
    app = names["app"]
    app.dsn = dsn
    await store.create_stream(database, "prices")
    (sql,) = blocks("expire-messages", "sql")
    await database.fetch(sql)
    async with app:
        await names["quote"]()
        lives = [
            (one.expires_at - one.created_at).total_seconds()
            for one in await app.admin.messages("prices")
            if one.expires_at is not None
        ]
    assert lives == [30, 30, 30, 0.5]


@pytest.mark.asyncio
async def test_erase_messages(database: store.Database) -> None:
    forget = run("erase-messages")["forget"]
    await store.create_stream(database, "orders")
    await store.publish_many(database, "orders", ["a", "b"], ["1", "2"])
    assert await forget(Admin(database), [2]) == [2]
    for statement in blocks("erase-messages", "sql")[0].splitlines():
        await database.fetch(statement)


@pytest.mark.asyncio
async def test_snooze(dsn: str) -> None:
    names = run("snooze")
    app, released = names["app"], names["released"]
    app.dsn = dsn
    with anyio.fail_after(60):
        async with app.running():
            await app.publish("orders", "a", {"id": "1"})
            await eventually(lambda: three_parked(app))
            released.add("1")
            await make_due(app)
            await app.idle()
            assert [info.parked for info in await app.admin.consumers("orders")] == [0, 0, 0]


async def three_parked(app: App) -> bool:
    return len(await parked(app)) == 3


def test_periodic_names_every_command() -> None:
    commands = re.findall(r"^headrace schedule (\w+)", blocks("periodic", "sh")[0], re.MULTILINE)
    assert sorted(commands) == ["info", "ls", "pause", "resume", "rm", "run"]
    assert all(command in schedule_commands for command in commands)


@pytest.mark.asyncio
async def test_unique_messages(dsn: str) -> None:
    names = run("unique-messages")
    app: App = names["app"]
    app.dsn = dsn
    async with app:
        assert [await names["changed"](17), await names["changed"](18), await names["changed"](17)] == [1, 2, 1]
        assert await names["changed_meanwhile"](17) == 1
        for statement in blocks("unique-messages", "sql")[0].split(";\n"):
            assert not statement or await app.database.fetchval(statement) == 1
