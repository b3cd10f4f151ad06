"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

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
        help="A Postgres URL, such as postgresql://user:password@host:5432/database. Default: the embedded Postgres."
        " Other users of the machine can see a password in it, but not in HEADRACE_DATABASE.",
    ),
]

JsonOption = Annotated[bool, Parameter(name="--json", negative="", show_default=False, help="Print JSON.")]


YesOption = Annotated[
    bool,
    Parameter(
        name=("--yes", "-y"),
        negative="",
        show_default=False,
        help="Don't ask for confirmation. Required without a terminal.",
    ),
]

LimitOption = Annotated[
    int, Parameter(name="--limit", validator=Number(gte=1, lte=MOST), help="The maximum number of results.")
]


def above(results: str, number: str) -> Parameter:
    """Declare the option that continues a list after a seq or an id."""
    return Parameter(
        name="--above", validator=Number(gte=0), help=f"Only {results} with a larger {number}, for the next page."
    )


def flag(help: str) -> Parameter:  # noqa: A002 - as Parameter has it
    """Declare an option without a value."""
    return Parameter(negative="", show_default=False, help=help)
