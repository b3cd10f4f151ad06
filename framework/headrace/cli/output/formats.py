"""Formats of numbers, sizes, JSON and text for people."""

from __future__ import annotations

from typing import Any

import msgspec


def count(number: int, noun: str) -> str:
    """Format a count of things: `1 message`, `1,234 messages`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line_json(data: Any) -> str:
    """Format data as JSON on one line. Returns an empty text for no headers."""
    return "" if data is None else msgspec.json.encode(data).decode()


def indented_json(data: Any) -> str:
    """Format data as JSON on several lines."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def number_or_dash(value: int | None) -> str:
    """Format a number for people: `12,345`. None becomes a dash."""
    return "–" if value is None else f"{value:,}"


def format_size(count: int) -> str:
    """Format bytes for people: `8 kB`, `1.2 MB`."""
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}" if amount < 100 else f"{amount:.0f} {units[0]}"
