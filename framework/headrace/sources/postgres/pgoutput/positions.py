"""WAL positions. They are integers in the code, and text such as `16/B374D848` for people and SQL."""

from __future__ import annotations


def as_text(position: int) -> str:
    """Return a position in Postgres's text form."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def parse(position: str) -> int:
    """Parse Postgres's text form of a position."""
    high, _, low = position.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
