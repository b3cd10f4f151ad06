"""Fixtures of many tests of the runtime. A file with an app of other settings has its own."""

from __future__ import annotations

import pytest

from headrace import App
from tests.runtime.running import Seen


@pytest.fixture
def app(dsn: str) -> App:
    """An app with the stream `orders`."""
    return App(dsn, streams=["orders"])


@pytest.fixture
def seen() -> Seen:
    """The records of the handlers of a test."""
    return Seen()
