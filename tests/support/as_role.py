"""A plugin of pytest that runs the apps of tests as a database role with grants, instead of the schema's owner:

    python -m pytest -p tests.support.as_role tests/runtime/test_outcomes.py

The role has `publish` and `consume` on all streams. The owner does for the test what such a role may not do: it creates the
streams and consumers before the role declares them, moves consumers, and runs the test's own statements.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headrace import App, store
from tests.support import servers
from tests.support.roles import as_role

ROLE = "granted_worker"

# Done by the owner, and then by the role, which finds everything as it wants it.
_DECLARED = ("create_stream", "declare_consumer", "edit_stream")

_ADMINISTERED = ("seek", "pause", "resume", "delete_consumer", "delete_stream", "redrive", "replay")


@pytest.fixture(autouse=True)
def run_as_role(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the apps of a test as the role."""
    if "dsn" not in request.fixturenames:
        yield
        return
    dsn = request.getfixturevalue("dsn")
    servers.run(_prepare(dsn))
    _patch_apps(monkeypatch, dsn)
    _patch_store(monkeypatch, dsn)
    _patch_statements(monkeypatch, dsn)
    yield


async def _prepare(dsn: str) -> None:
    async with servers.opened(dsn) as database:
        await database.fetch(
            f"do $$ begin create role {ROLE} login password 'secret'; exception when duplicate_object or unique_violation then null; end $$"
        )
        await database.fetch(f"alter default privileges in schema public grant all on tables to {ROLE}")
        for privilege in ("publish", "consume"):
            await store.grant(database, privilege, ROLE)


def _patch_apps(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    connect = App._connect

    async def connect_as_role(self: App) -> None:
        if self.dsn == dsn:
            self.dsn = as_role(dsn, ROLE)
        await connect(self)
        if self.dsn == as_role(dsn, ROLE):
            assert self.database.granted

    monkeypatch.setattr(App, "_connect", connect_as_role)


def _patch_store(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    def patch(name: str, *, then_as_role: bool) -> None:
        original = getattr(store, name)

        async def call(executor: Any, *args: Any, **options: Any) -> Any:
            if not getattr(executor, "granted", False):
                return await original(executor, *args, **options)
            async with servers.opened(dsn) as owner:
                result = await original(owner, *args, **options)
            return await original(executor, *args, **options) if then_as_role else result

        monkeypatch.setattr(store, name, call)

    for name in _DECLARED:
        patch(name, then_as_role=True)
    for name in _ADMINISTERED:
        patch(name, then_as_role=False)


def _patch_statements(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    def patch(name: str) -> None:
        original = getattr(store.Database, name)

        async def call(self: store.Database, query: str, /, *args: Any) -> Any:
            if not self.granted or not sys._getframe(1).f_globals["__name__"].startswith("tests."):
                return await original(self, query, *args)
            connection = await asyncpg.connect(dsn)
            try:
                return await getattr(connection, name)(query, *args)
            finally:
                await connection.close()

        monkeypatch.setattr(store.Database, name, call)

    for name in ("fetch", "fetchrow", "fetchval"):
        patch(name)

    original = store.Database.transaction

    @asynccontextmanager
    async def transaction(self: store.Database) -> Any:
        # Past the frames of contextlib.
        if self.granted and sys._getframe(2).f_globals["__name__"].startswith("tests."):
            connection = await asyncpg.connect(dsn)
            try:
                async with connection.transaction():
                    yield connection
            finally:
                await connection.close()
        else:
            async with original(self) as connection:
                yield connection

    monkeypatch.setattr(store.Database, "transaction", transaction)
