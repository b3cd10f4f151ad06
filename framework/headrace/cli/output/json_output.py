"""Prints JSON for `--json`."""

from __future__ import annotations

import sys

import msgspec


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
