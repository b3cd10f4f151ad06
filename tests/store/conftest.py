"""Fixtures of the store's tests."""

from __future__ import annotations

import pytest_asyncio

from headrace import store
from tests.support.readers import Clock
from tests.support.retained import Stream
from tests.support.roles import login

__all__ = ["login", "stream"]


@pytest_asyncio.fixture
async def stream(database: store.Database, clock: Clock) -> Stream:
    return Stream(database, clock)
