"""Schedules over HTTP and by the database's own administration: the same results and rights. Their operations are in
`test_doors.py`."""

from __future__ import annotations

import pytest

from headrace import App, store
from headrace.admin import Admin
from headrace.client import Remote
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownSchedule
from tests.support.serving import serving


async def declared(database: store.Database, *names: str) -> None:
    """Declare schedules as an app does at its start."""
    app = App()
    for name in names:
        app.every("@daily", "reports", name=name, data={"name": name})
    await store.create_stream(database, "reports")
    for schedule in app.schedules:
        await store.declare_schedule(database, schedule.spec)


@pytest.mark.asyncio
async def test_both_administrations_return_the_same(database: store.Database, dsn: str) -> None:
    await declared(database, "a", "b", "c")
    admin = Admin(database)
    with serving(dsn) as url:
        async with Remote(url) as remote:
            assert [one.name for one in await remote.schedules()] == ["a", "b", "c"]
            assert await remote.schedules(limit=2) == await admin.schedules(limit=2)
            await remote.pause_schedule("a")
            assert await remote.schedule("a") == await admin.schedule("a")
            with pytest.raises(InvalidInput, match="is paused"):
                await remote.run_schedule("a")
            with pytest.raises(UnknownSchedule):
                await remote.schedule("a/b%\0")


@pytest.mark.asyncio
async def test_a_token_of_the_stream_suffices_and_another_learns_nothing(database: store.Database, dsn: str) -> None:
    await declared(database, "a")
    admin = Admin(database)
    ours = await admin.create_token("ours", ["admin:reports"])
    reader = await admin.create_token("reader", ["consume:reports"])
    theirs = await admin.create_token("theirs", ["admin:orders"])
    with serving(dsn) as url:
        async with Remote(url, token=ours.token) as remote:
            await remote.pause_schedule("a")
            with pytest.raises(ConfigurationError, match="is not allowed"):
                await remote.schedules()
        async with Remote(url, token=reader.token) as remote:
            assert (await remote.schedule("a")).state == "paused"
            with pytest.raises(ConfigurationError, match="is not allowed"):
                await remote.resume_schedule("a")
        async with Remote(url, token=theirs.token) as remote:
            errors = []
            for name in ("a", "b"):
                with pytest.raises(ConfigurationError) as error:
                    await remote.schedule(name)
                errors.append(str(error.value).replace(f"schedule {name}", "schedule"))
            assert errors[0] == errors[1]
