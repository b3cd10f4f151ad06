"""Options that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

MOST = 10_000
"""Maximum number of messages in one answer. It equals `headrace.admin.MAX_LIMIT`, which is not imported here."""

DatabaseOption = Annotated[
    str | None,
    Parameter(
        name="--database",
        env_var="HEADRACE_DATABASE",
        show_default=False,
        help="A Postgres URL, such as postgresql://user:password@host:5432/database. Without it: the embedded Postgres.",
    ),
]

JsonOption = Annotated[
    bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON, for programs.")
]


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


YesOption = Annotated[
    bool,
    Parameter(
        name=("--yes", "-y"),
        negative="",
        show_default=False,
        help="Don't ask. Needed where there is no terminal to ask on.",
    ),
]

LimitOption = Annotated[int, Parameter(name="--limit", validator=Number(gte=1, lte=MOST), help="At most so many.")]


def flag(help: str) -> Parameter:  # noqa: A002 - as Parameter has it
    """Declare an option without a value, which is given or not."""
    return Parameter(negative="", show_default=False, help=help)
