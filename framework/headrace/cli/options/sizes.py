"""Sizes on the command line, see `headrace.model.text.sizes`."""

from __future__ import annotations

from headrace.cli.errors import UsageError
from headrace.model.text.sizes import parse_size

_MAX_SIZE = 2**63 - 1


def size_in_bytes(text: str, option: str) -> int:
    """Parse a size, in bytes. Raises `UsageError`, naming the option, if it is not one."""
    size = parse_size(text)
    if size is None:
        raise UsageError(f"{option} {text!r} is not a size. Write it as 1000000 (bytes), '500MB', '10GB' or '512MiB'.")
    if not 0 < size <= _MAX_SIZE:
        raise UsageError(f"{option} {text!r} is out of range. Give a size from 1 byte to 8 EiB.")
    return size
