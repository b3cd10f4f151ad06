"""A forked child has no part in the sessions of its parent."""

from __future__ import annotations

import multiprocessing
import os
import stat

import asyncpg
import pytest

from headrace import store
from headrace.store.connections.connection import Connection

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # a driver in a thread may run beside it
]


def has_no_socket(number: int) -> None:
    os._exit(int(stat.S_ISSOCK(os.fstat(number).st_mode)))


async def test_a_forked_child_gives_up_the_connections_of_its_parent(database: store.Database) -> None:
    async with database.transaction() as connection:
        assert isinstance(connection, Connection)
        assert connection.descriptor is not None
        child = multiprocessing.get_context("fork").Process(target=has_no_socket, args=(connection.descriptor,))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert await connection.fetchval("select 1") == 1, "the parent keeps it"


async def test_a_closed_connection_has_no_descriptor_since_another_file_may_have_its_number(dsn: str) -> None:
    for end in (Connection.terminate, Connection.close):
        connection = await asyncpg.connect(dsn, connection_class=Connection)
        assert connection.descriptor is not None
        ended = end(connection)
        if ended is not None:
            await ended
        assert connection.descriptor is None
