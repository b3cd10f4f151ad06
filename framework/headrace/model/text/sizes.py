"""Parses and formats sizes: `500MB`, `10GB`, `1.5TB`. `MiB` and the like count in powers of two."""

from __future__ import annotations

import re

from headrace.model.errors import ConfigurationError

_PATTERN = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}


def parse_size(text: str) -> int | None:
    """Return a size in bytes, or None if the text is not one."""
    match = _PATTERN.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        return None
    return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def size(value: int | str, setting: str) -> int:
    """Return a size in bytes, from a number or text. Raises `ConfigurationError`, naming `setting`, if it is neither."""
    found = parse_size(value) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool):
        raise ConfigurationError(
            f"{setting}={value!r:.80} is not a size. Write bytes (1000000), '500kB', '64MB' or '1GB'."
        )
    return found


def format_size(count: int, byte: str = "bytes") -> str:
    """Return a number of bytes for people, such as `512 bytes` or `1.2 GB`. `byte` is the smallest unit."""
    amount, units = float(count), [byte, "kB", "MB", "GB", "TB"]
    while amount >= 999.5 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.3g} {units[0]}" if amount < 100 else f"{amount:.0f} {units[0]}"
