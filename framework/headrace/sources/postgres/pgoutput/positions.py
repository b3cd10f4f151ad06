"""Places in the WAL: integers here, and text such as `16/B374D848` where people or SQL read them."""

from __future__ import annotations


def text(position: int) -> str:
    """As Postgres writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def number(position: str) -> int:
    """What Postgres has written."""
    high, _, low = position.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
