"""Assertions about log records: their events and fields."""

from __future__ import annotations

import logging
from typing import Any

import pytest


def logged(caplog: pytest.LogCaptureFixture, event: str, **fields: Any) -> list[logging.LogRecord]:
    """Return the records of an event that have these fields."""
    return [
        record
        for record in caplog.records
        if getattr(record, "event", None) == event
        and all(getattr(record, name, None) == value for name, value in fields.items())
    ]
