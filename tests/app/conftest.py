"""Fixtures of many tests of `App`. A file with an app of other settings has its own."""

from __future__ import annotations

import pytest

from headrace import App


@pytest.fixture
def app(dsn: str) -> App:
    """An app with the stream `orders`."""
    return App(dsn, streams=["orders"])
