"""An endpoint, and a server that pushes to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.server.push.endpoints import Endpoint, Pushed, listening, pushing


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    """A server on loopback to push to."""
    async with listening(Endpoint()) as endpoint:
        yield endpoint


@pytest_asyncio.fixture
async def pushed(dsn: str) -> AsyncIterator[Pushed]:
    """The pushing part of a server process on a fresh database, with loopback addresses allowed."""
    async with pushing(dsn) as pushed:
        yield pushed
