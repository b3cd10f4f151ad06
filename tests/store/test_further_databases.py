"""Databases that a server may not use as further ones."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.admin.databases import inspect
from headrace.model.errors import ConfigurationError, NotGranted, UnknownDatabase
from tests.support.roles import Login


@pytest.mark.asyncio
async def test_a_role_without_the_right_gets_a_sentence_that_says_so(login: Login, database: store.Database) -> None:
    weak = await login("consume")
    with pytest.raises(NotGranted, match="no `admin` for all streams"):
        await store.secret(weak, "ack_ids")
    with pytest.raises(NotGranted, match="'eu' is used has no `admin`"):
        await inspect(database, "eu", weak.dsn)
    with pytest.raises(ConfigurationError, match="own database"):
        await inspect(database, "eu", database.dsn)


@pytest.mark.asyncio
async def test_a_name_for_a_database_that_was_just_removed_gets_a_sentence_that_says_so(
    database: store.Database,
) -> None:
    with pytest.raises(UnknownDatabase, match="just removed"):
        await store.place_name(database, "stream", "visits", "eu")
