"""Fixture of a captured database and its captured messages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.sources.postgres.captured import Shop


@pytest_asyncio.fixture
async def shop(dsn: str) -> AsyncIterator[Shop]:
    """A database with the table `public.orders`, which is not captured yet."""
    async with Shop.opened(dsn) as shop:
        yield shop
