"""Parsing of sizes on the command line: bytes as a number, or `500MB`, `10GB`, `1.5TB`. `MiB` and the
like count in powers of two.
"""

from __future__ import annotations

import re

from headrace.cli.errors import UsageError

_PATTERN = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_MAX_SIZE = 2**63 - 1


def size_in_bytes(text: str, option: str) -> int:
    """Parse a size, in bytes. Raises `UsageError`, naming the option, if it is not one."""
    match = _PATTERN.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{option} {text!r} is not a size. Write it as 1000000 (bytes), '500MB', '10GB' or '512MiB'.")
    found = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if not 0 < found <= _MAX_SIZE:
        raise UsageError(f"{option} {text!r} is out of range. Give a size from 1 byte to 8 EiB.")
    return found
