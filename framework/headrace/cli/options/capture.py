"""Options for what a source captures, for `source postgres add` and `edit`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from headrace.cli.options.sizes import size_in_bytes
from headrace.cli.options.times import NO_VALUE, duration
from headrace.cli.problems import NoInput, UsageProblem

_STDIN = "-"


def _option(name: str, help: str, **more: Any) -> Parameter:  # noqa: A002 - as Parameter has it
    return Parameter(name=name, help=help, show_default=False, **({"negative": ""} | more))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """The capture settings given as options that can be changed later."""

    table: Annotated[
        list[str] | None,
        _option("--table", "A table, such as public.orders; may be given several times."),
    ] = None
    database: Annotated[
        str | None,
        _option(
            "--from",
            "The URL of the database that is captured, which other users may see while this runs; none for the one that"
            " Headrace is in, the default.",
        ),
    ] = None
    database_file: Annotated[
        str | None,
        _option("--from-file", "A file with that URL; - is standard input.", allow_leading_hyphen=True),
    ] = None
    columns: Annotated[
        list[str] | None,
        _option(
            "--columns",
            "Of a table the only columns to capture, as public.orders=id,status; may be given several times, and none captures all.",
        ),
    ] = None
    actions: Annotated[
        str | None, _option("--actions", "Which changes: of insert,update,delete,truncate; by default all of them.")
    ] = None
    where: Annotated[
        str | None,
        _option("--where", "Only changes whose message meets this, such as 'data.record.total > 100'; none for all."),
    ] = None
    group: Annotated[
        str | None,
        _option("--group", "Columns by whose values messages are kept in order, as a,b; none for the primary key."),
    ] = None
    key: Annotated[
        str | None,
        _option("--key", "A template of keys, such as 'orders.{record.region}.{record.id}'; none for the default."),
    ] = None
    sort: Annotated[
        str | None,
        _option("--sort", "Of rows: a column that grows with every insert and update of a row; or none."),
    ] = None
    deletes: Annotated[
        Literal["ignore", "tombstone"] | None,
        _option("--deletes", "Of rows: what becomes of one that is deleted: its last version stays, or a tombstone."),
    ] = None
    numeric: Annotated[
        Literal["string", "number"] | None,
        _option("--numeric", "How numeric values stand in JSON; by default as strings, which nobody rounds."),
    ] = None
    transform: Annotated[
        str | None,
        _option("--transform", "A function that makes of a message's data what is published, as module:name; or none."),
    ] = None
    backfill: Annotated[
        bool | None,
        _option(
            "--backfill", "Read tables that are new to it from their first row on, as is the default; or don't.",
            negative="--no-backfill",
        ),
    ] = None  # fmt: skip
    rate: Annotated[str | None, _option("--rate", "Rows a second that a backfill reads, at most; or none.")] = None
    heartbeat: Annotated[
        str | None,
        _option(
            "--heartbeat", "Write something after so long without a change, such as 30s; none, the default, for never."
        ),
    ] = None
    alarm: Annotated[
        str | None,
        _option("--alarm", "Raise an alarm when the slot holds back so much WAL, such as 5GB; by default 1GB."),
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of `PostgresSpec`. Raises `UsageProblem`, `NoInput`."""
        found: dict[str, Any] = {
            name: getattr(self, name) for name in ("deletes", "numeric", "backfill") if getattr(self, name) is not None
        }
        for name in ("where", "key", "sort", "transform"):
            value = getattr(self, name)
            if value is not None:
                found[name] = None if value.lower() in NO_VALUE else value
        if self.table is not None:
            found["tables"] = list(self.table)
        if self.columns is not None:
            found["columns"] = {} if self.columns == ["none"] else _columns(self.columns)
        if self.actions is not None:
            found["actions"] = _words(self.actions)
        if self.group is not None:
            found["group"] = None if self.group.lower() in NO_VALUE else _words(self.group)
        if self.rate is not None:
            found["rate"] = None if self.rate.lower() in NO_VALUE else rows_a_second(self.rate)
        if self.heartbeat is not None:
            found["heartbeat"] = None if self.heartbeat.lower() in NO_VALUE else duration(self.heartbeat, "--heartbeat")
        if self.alarm is not None:
            found["alarm"] = size_in_bytes(self.alarm, "--alarm")
        return found | self._database()

    def _database(self) -> dict[str, Any]:
        if self.database is not None and self.database_file is not None:
            raise UsageProblem("Give --from or --from-file, and not both.")
        if self.database_file is not None:
            return {"database": _url_in(self.database_file)}
        if self.database is None:
            return {}
        return {"database": None if self.database.lower() in NO_VALUE else self.database}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CaptureBeginning:
    """The capture settings given as options that can't be changed later."""

    mode: Annotated[
        Literal["changes", "rows"] | None,
        _option("--mode", "A message for each change, the default; or of each row the latest version."),
    ] = None
    slot: Annotated[
        str | None, _option("--slot", "An existing replication slot to use, instead of one of its own.")
    ] = None
    publication: Annotated[
        str | None, _option("--publication", "An existing publication to use, instead of one of its own.")
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of `PostgresSpec`."""
        found = {"mode": self.mode, "slot": self.slot, "publication": self.publication}
        return {name: value for name, value in found.items() if value is not None}


def named_after(tables: Sequence[str] | None) -> str:
    """Derive a source's name from the name of its only table. Raises `UsageProblem` if there are none or several."""
    if not tables:
        raise UsageProblem("Say which table to capture: --table public.orders.")
    if len(tables) > 1:
        raise UsageProblem("Several tables need a name for their source: write it before --table.")
    name = re.sub(r"[^a-z0-9]+", "_", tables[0].rpartition(".")[2].lower()).strip("_")[:48]
    if not name:
        raise UsageProblem(f"No name for the source can be made of {tables[0]!r}: write one before --table.")
    return name


def rows_a_second(text: str) -> int:
    """Parse a rate, in rows per second. Raises `UsageProblem`."""
    if not (text.isascii() and text.isdigit() and len(text) < 11 and int(text)):
        raise UsageProblem(f"--rate {text!r} is not a number of rows a second: write one such as 5000.")
    return int(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _columns(given: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in given:
        table, equals, columns = one.partition("=")
        if not (equals and table.strip() and columns.strip()):
            raise UsageProblem(f"--columns {one!r} is not TABLE=COLUMNS: write it as public.orders=id,status.")
        found.setdefault(table.strip(), []).extend(_words(columns))
    return found


def _url_in(file: str) -> str:
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoInput(f"The file {file!r} with the database's URL can't be read: {error}.") from error
    lines = text.split("\n")
    url = lines[0].strip()
    if not url or any(line.strip() for line in lines[1:]):
        raise UsageProblem(f"The file {file!r} must hold the database's URL on one line, and nothing else.")
    return url
