"""Unknown errors of the database: they are logged and retried, and do not end a worker."""

from __future__ import annotations

import logging

import pytest

from headrace import App, Message, store
from headrace.model.errors import SchemaError
from tests.runtime.running import Seen, eventually, running
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

REFUSAL = """
    create function public.refuse() returns trigger language plpgsql as $$
    begin
        raise exception 'not today' using errcode = 'object_not_in_prerequisite_state', hint = 'try tomorrow';
    end $$"""


async def until_logged(caplog: pytest.LogCaptureFixture, task: str, text: str) -> None:
    async def found() -> bool:
        records = logged(caplog, "database error", task=task)
        return any(text in record.getMessage() and record.levelno == logging.ERROR for record in records)

    await eventually(found)


@pytest.mark.parametrize(
    ("what", "task"),
    [("insert on headrace_internal.leases", "ship: leasing"), ("delete on headrace_internal.leases", "ship: settling")],
)
async def test_an_unknown_error_of_the_database_is_logged_and_survived(
    app: App, database: store.Database, caplog: pytest.LogCaptureFixture, what: str, task: str
) -> None:
    seen = Seen()

    @app.consumer("orders")
    async def ship(message: Message) -> None:
        seen.note(message.seq)

    async with running(app):
        await database.fetch(REFUSAL)
        await database.fetch(f"create trigger refuse before {what} execute function public.refuse()")
        await app.publish("orders", "a", 1)
        await until_logged(caplog, task, "not today (SQLSTATE 55000). The server's hint: try tomorrow")
        await database.fetch("drop trigger refuse on headrace_internal.leases")
        assert await seen.until(1) == [1]
        await app.idle()
        assert await database.fetchval("select count(*) from headrace_internal.leases") == 0


async def test_a_missing_schema_still_ends_the_worker_with_an_error(app: App, database: store.Database) -> None:
    @app.consumer("orders")
    async def ship(message: Message) -> None: ...

    with pytest.RaisesGroup(SchemaError, allow_unwrapped=True, flatten_subgroups=True):
        async with running(app):
            # A name needs no locks of tables, as a drop would, which can end in a deadlock with the worker.
            await database.fetch("alter schema headrace_internal rename to gone")
            await app.idle()
