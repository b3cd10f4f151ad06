"""Periodic messages of a process that runs as a database role with grants."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import App, store
from headrace.app.periodic import runner
from headrace.app.periodic.runner import Periodic
from headrace.model.errors import NotGranted
from headrace.runtime.messages.publisher import Publisher
from tests.support.roles import Login, login

__all__ = ["login"]


def declared(stream: str, **settings: Any) -> App:
    app = App()
    app.every("@daily", stream, name="daily", **settings)
    return app


def shared(database: store.Database) -> Any:
    return SimpleNamespace(
        database=database, publisher=Publisher(lambda: database, lambda *_: None, lambda: datetime.now(UTC))
    )


@pytest.mark.asyncio
async def test_a_role_with_publish_runs_what_the_owner_declared_and_changes_nothing(
    database: store.Database, login: Login
) -> None:
    app = declared("orders")
    await runner.declare(database, app.schedules)
    role = await login("publish")
    await runner.declare(role, app.schedules)
    await store.request_schedule(database, "daily")
    assert await Periodic(app.schedules).tick(shared(role)) == 1
    with pytest.raises(NotGranted, match="admin"):
        await runner.declare(role, declared("orders", data=1).schedules)
    for call in (
        store.schedule(role, "daily"),
        store.delete_schedule(role, "daily"),
        store.request_schedule(role, "daily"),
    ):
        with pytest.raises(NotGranted):
            await call


@pytest.mark.asyncio
async def test_a_role_publishes_to_no_other_stream_by_a_schedule(
    database: store.Database, login: Login, caplog: pytest.LogCaptureFixture
) -> None:
    app = declared("secrets")
    await runner.declare(database, app.schedules)
    role = await login("publish", "admin")
    await store.request_schedule(database, "daily")
    assert await Periodic(app.schedules).tick(shared(role)) == 0
    assert "secrets" in caplog.text
    with pytest.raises(NotGranted):
        await runner.declare(role, declared("secrets", data=1).schedules)
    assert (await store.schedule(database, "daily")).messages == 0


@pytest.mark.asyncio
async def test_a_role_sees_the_schedules_of_its_streams(database: store.Database, login: Login) -> None:
    await runner.declare(database, declared("secrets").schedules)
    app = App()
    app.every("@daily", "orders")
    await runner.declare(database, app.schedules)
    role = await login("observe")
    assert [row["name"] for row in await role.fetch("select name from headrace.schedules")] == ["orders"]
