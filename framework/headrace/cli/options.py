"""Options that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

DatabaseOption = Annotated[
    str | None,
    Parameter(
        name="--database",
        env_var="HEADRACE_DATABASE",
        show_default=False,
        help="A Postgres URL, such as postgresql://user:password@host:5432/database. Without it: the embedded Postgres.",
    ),
]

JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, for programs.")]


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
