"""Each row of the documentation's table of schema changes is true, in both modes: the copies made of the stream equal the
table at the end, or the source reports why they don't, and no writer gets an error. `make test` runs each eighth row while
it is captured, `make test-long` all others and a sixth of them while it is not captured, `make torture` the rest of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from headrace import store
from tests.sources.postgres.ddl import columns, relations
from tests.sources.postgres.ddl.document import Row, rows
from tests.sources.postgres.ddl.running import Case, Trial

CASES: dict[str, Case] = {
    **columns.COLUMNS, **columns.TYPES, **columns.KEYS,
    **relations.WRITES, **relations.TABLES, **relations.PARTITIONS, **relations.PUBLICATIONS,
}  # fmt: skip

ROWS = list(rows())


def test_each_row_has_a_case_and_each_case_a_row() -> None:
    operations = [row.operation for row in ROWS]
    assert len(set(operations)) == len(operations)
    assert {"without a row": CASES.keys() - set(operations), "without a case": set(operations) - CASES.keys()} == {
        "without a row": set(),
        "without a case": set(),
    }


def trials() -> Iterator[Any]:
    for place, row in enumerate(ROWS):
        captured = [] if place % 8 == 0 else pytest.mark.long
        yield pytest.param(row, False, marks=captured, id=f"{row.operation}-while_captured")
        not_captured = pytest.mark.long if place % 6 == 0 else pytest.mark.torture
        yield pytest.param(row, True, marks=not_captured, id=f"{row.operation}-while_not_captured")


@pytest.mark.parametrize(("row", "away"), list(trials()))
@pytest.mark.asyncio
async def test_a_schema_change_does_as_documented(row: Row, away: bool, database: store.Database) -> None:
    case = CASES[row.operation]
    connection = await asyncpg.connect(database.dsn)
    try:
        major = connection.get_server_version().major
        if not case.since <= major <= case.until:
            pytest.skip(f"PostgreSQL {major} doesn't have this change")
        if away and not case.away:
            pytest.skip("only happens while the source is captured")
        await Trial(case, row, database, connection).run(away=away)
    finally:
        await connection.close()
