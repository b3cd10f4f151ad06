"""Parsing of sizes on the command line: bytes as a number, or `500MB`, `10GB`, `1.5TB`. `MiB` and the
like count in powers of two.
"""

from __future__ import annotations

import re

from headrace.cli.problems import UsageProblem

_TEXT = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_UNITS: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("kmgtp", start=1)
    for ending, base in (("b", 1000), ("ib", 1024))
}
_LARGEST = 2**63 - 1


def size_in_bytes(text: str, option: str) -> int:
    """Parse a size, in bytes. Raises `UsageProblem`, naming the option, if it is not one."""
    match = _TEXT.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise UsageProblem(f"{option} {text!r} is not a size: write bytes (1000000), '500MB', '10GB' or '512MiB'.")
    found = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if not 0 < found <= _LARGEST:
        raise UsageProblem(f"{option} {text!r} can't be: a size is from 1 byte to 8 EiB.")
    return found
