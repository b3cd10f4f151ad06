"""Options for what a source captures, for `source postgres add` and `edit`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from headrace.cli.errors import UsageError
from headrace.cli.options.from_settings import (
    VISIBLE,
    Options,
    Special,
    from_settings,
    lines_of,
    nothing,
    option,
    words,
)
from headrace.sources.postgres.settings import PostgresSettings

TablesOption = Annotated[
    list[str] | None,
    Parameter(
        name="--table", negative="", show_default=False, help="Only this table of the source. Repeat for several."
    ),
]

RateOption = Annotated[
    str | None,
    Parameter(
        name="--rate",
        show_default=False,
        help="The maximum number of rows per second. Default: the source's rate.",
    ),
]


def named_after(tables: Sequence[str] | None) -> str:
    """Derive a source's name from the name of its only table. Raises `UsageError` if there are none or several."""
    if not tables:
        raise UsageError("Give the table to capture: --table public.orders.")
    if len(tables) > 1:
        raise UsageError("Several tables need a name for their source: write it before --table.")
    name = re.sub(r"[^a-z0-9]+", "_", tables[0].rpartition(".")[2].lower()).strip("_")[:48]
    if not name:
        raise UsageError(f"No name for the source can be made of {tables[0]!r}: write one before --table.")
    return name


def rows_a_second(text: str, name: str = "--rate") -> int:
    """Parse a rate, in rows per second. Raises `UsageError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text)):
        raise UsageError(f"{name} {text!r} is not a number of rows a second: write one such as 5000.")
    return int(text)


def _columns(given: list[str], name: str) -> dict[str, list[str]]:
    if nothing(given):
        return {}
    found: dict[str, list[str]] = {}
    for one in given:
        table, equals, columns = one.partition("=")
        if not (equals and table.strip() and columns.strip()):
            raise UsageError(f"{name} {one!r} is not TABLE=COLUMNS: write it as public.orders=id,status.")
        found.setdefault(table.strip(), []).extend(words(columns, name))
    return found


@from_settings(
    PostgresSettings,
    tables=Special("--table"),
    database=Special("--from", more=VISIBLE),
    columns=Special(parse=_columns),
    actions=Special(joined=True),
    group=Special(joined=True),
    rate=Special(parse=rows_a_second),
)
@dataclass(frozen=True, kw_only=True)
class CaptureOptions(Options):
    """The capture settings given as options that can be changed later."""

    database_file: Annotated[
        str | None, option("--from-file", "A file with that URL. - is standard input.", allow_leading_hyphen=True)
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings. Raises `UsageError`, `UnreadableInput`."""
        found = super().given()
        if self.database_file is not None:
            if "database" in found:
                raise UsageError("Give --from or --from-file, and not both.")
            lines = lines_of(self.database_file, "the database's URL")
            if len(lines) != 1:
                raise UsageError(
                    f"The file {self.database_file!r} must hold the database's URL on one line, and nothing else."
                )
            found["database"] = lines[0]
        return found


@from_settings(PostgresSettings, only=("mode", "slot", "shared_slot", "publication"))
class CaptureBeginning(Options):
    """The capture settings given as options that can't be changed later."""
