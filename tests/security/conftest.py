"""The servers that are attacked."""

from __future__ import annotations

from tests.server.conftest import api, consume, engine, served_url
from tests.server.push.conftest import endpoint, push_app

__all__ = ["api", "consume", "endpoint", "engine", "push_app", "served_url"]
