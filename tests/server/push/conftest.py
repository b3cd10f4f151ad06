"""An endpoint, and a server that pushes to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.server.push.endpoints import Endpoint, PushApp, listening, running_push


@pytest_asyncio.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    """A server on loopback to push to."""
    async with listening(Endpoint()) as endpoint:
        yield endpoint


@pytest_asyncio.fixture
async def push_app(dsn: str) -> AsyncIterator[PushApp]:
    """The pushing part of a server process on a fresh database, with loopback addresses allowed."""
    async with running_push(dsn) as push_app:
        yield push_app
