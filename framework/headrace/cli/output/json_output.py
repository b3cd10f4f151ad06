"""Prints JSON for `--json`."""

from __future__ import annotations

import sys

import msgspec

from headrace.model.text.printing import printable_json


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    sys.stdout.write(printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")
