"""Columns that a source's settings name, and its tables don't have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator

import anyio

from headrace.model import conditions
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.connection.untrusted import SourceDatabase
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.rules.conditions import SourceCondition
from headrace.sources.postgres.rules.keys import RowKeyTemplate
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table

LOOK_TIMEOUT = 5.0
"""Seconds that a look at the tables of new settings may take. A database that does not answer refuses no settings."""


def named_columns(spec: PostgresSpec, table: str) -> dict[str, Collection[str]]:
    """Return the columns of a table that the settings name, by setting."""
    return {
        "columns": spec.columns.get(table) or (),
        "group": spec.group or (),
        "key": () if spec.key is None else RowKeyTemplate(spec.key).columns,
        "sort": () if spec.sort is None else (spec.sort,),
        "where": () if spec.where is None else sorted(SourceCondition(conditions.parse(spec.where)).columns),
    }


def missing_columns(spec: PostgresSpec, tables: Collection[Table]) -> Iterator[tuple[str, str]]:
    """Yield each setting that names a column which a table lacks, and a sentence about it. `where`, which all tables share,
    may name a column that only some have.
    """
    known = {column.name for table in tables for column in table.columns}
    for table in tables:
        columns = {column.name for column in table.columns}
        for setting, names in named_columns(spec, table.name).items():
            for name in names:
                if name not in (known if setting == "where" else columns):
                    yield (
                        setting,
                        f"The setting {setting} names the column {name!r}, which {table.name} does not have.{closest(name, columns)}",
                    )


def closest(name: str, columns: Iterable[str]) -> str:
    """Return a question for the column that was probably meant, or nothing."""
    similar = difflib.get_close_matches(name, columns, n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


async def refuse_missing_columns(database: SourceDatabase, spec: PostgresSpec) -> None:
    """Raise `ConfigurationError` if settings name a column that their table does not have.

    Every change of such a table would become a failure, or be left out. Nothing is refused for a table that does not exist
    yet, and for a database that does not answer. The capture reports these.
    """
    if not any(any(named_columns(spec, table).values()) for table in spec.tables):
        return
    tables: list[Table] = []
    with anyio.move_on_after(LOOK_TIMEOUT):
        try:
            async with await SourceConnection.connect(database, application_name="headrace check") as connection:
                tables = await catalog.existing_tables(connection, spec.tables)
        except HeadraceError:
            return
    for setting, reason in missing_columns(spec, tables):
        raise ConfigurationError(f"The source {spec.name!r} can't capture its tables so. {reason}", field=setting)
