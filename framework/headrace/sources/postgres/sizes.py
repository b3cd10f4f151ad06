"""Formats sizes for people."""

from __future__ import annotations


def as_size(count: int) -> str:
    """Return a number of bytes for people, such as `512 bytes` or `1.2 GB`."""
    amount, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}"
