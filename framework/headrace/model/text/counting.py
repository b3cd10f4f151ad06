"""Counts of things as text."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """Format a count of things: `1 message`, `1,234 messages`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
