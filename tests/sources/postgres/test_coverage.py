"""Which relations the server refuses writes of is known as the server itself knows it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import coverage
from headrace.sources.postgres.database.catalog import load_tables
from headrace.sources.postgres.errors import SourceRefused
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.connections import connected

pytestmark = pytest.mark.asyncio

ROUNDS = 120
RELATIONS = ("plain", "heir", "root", "leaf", "inner", "deep")


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    async with connected(empty_dsn) as connection:
        yield connection


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(1, 5))])
async def test_the_relations_that_refuse_writes_are_those_of_the_server(
    connection: SourceConnection, seed: int
) -> None:
    chance = random.Random(seed)
    spec = PostgresSpec(name="s", stream="s", tables=("public.plain", "public.root"))
    seen: set[tuple[str, bool]] = set()
    for turn in range(ROUNDS):
        statements = [*schema(chance, connection.version), *publications(chance, connection.version)]
        done = []
        for statement in statements:
            with suppress(SourceRefused):  # it does not fit the others
                await connection.query(statement)
                done.append(statement)
        tables = (await load_tables(connection, spec.tables)).values()
        refusals = await coverage.refusals(connection, spec, [table.oid for table in tables], None)
        foreseen = {one.relation.removeprefix("public.") for one in refusals if one.publication is not None}
        assert foreseen == await refused(connection), (turn, done)
        seen |= {(name, name in foreseen) for name in RELATIONS}
        # The statements correct it, whatever they are.
        for one in refusals:
            if one.publication is not None and one.mend is not None:
                with suppress(SourceRefused):  # two of them may correct the same
                    await connection.query(one.mend)
        assert await refused(connection) <= {
            one.relation.removeprefix("public.")
            for one in await coverage.refusals(connection, spec, [table.oid for table in tables], None)
        }
        await connection.query("drop schema public cascade; create schema public")
        for name in ("one", "two"):
            await connection.query(f"drop publication if exists {name}")
    assert {name for name, is_refused in seen if is_refused} >= {"plain", "heir", "leaf", "deep"}
    assert {name for name, is_refused in seen if not is_refused} == set(RELATIONS)


def schema(chance: random.Random, version: int) -> list[str]:
    generated = ["", "", ", add g int generated always as (v * 2) stored"]
    if version >= 180000:
        generated.append(", add g int generated always as (v * 2) virtual")

    def key() -> str:
        return chance.choice(("", "", ", primary key (id)", ", primary key (id) deferrable", ", unique (id)"))

    statements = [
        f"create table plain (id int not null, v int{key()})",
        f"create table heir (id int not null, v int{key()}) inherits (plain)",
        f"create table root (id int not null, v int{key()}) partition by range (id)",
        "create table leaf partition of root for values from (0) to (10)",
        'create table "inner" partition of root for values from (10) to (20) partition by range (id)',
        'create table deep partition of "inner" for values from (10) to (15)',
        f"alter table plain alter v set default 0{chance.choice(generated)}",
        f"alter table root alter v set default 0{chance.choice(generated)}",
    ]
    for name in ("plain", "heir", "root", "leaf", "deep"):
        identity = chance.choice(
            ("default", "default", "full", "nothing", f"using index {name}_id_key", f"using index {name}_pkey")
        )
        statements.append(f"alter table {name} replica identity {identity}")
        if chance.random() < 0.15:
            statements.append(f"alter table {name} drop constraint {name}_{chance.choice(('pkey', 'id_key'))}")
    return statements


def publications(chance: random.Random, version: int) -> list[str]:
    statements = []
    for name in ("one", "two")[: chance.choice((1, 1, 2))]:
        targets = ["plain", "only plain", "root", "leaf", "deep", "plain, root", '"inner"', "leaf, root"]
        if version >= 150000:
            targets += ["plain (id)", "plain (v)", "root (id, v)", "root (v)", "leaf (v)", "plain where (v > 1)", "root where (id > 1)",
                        "root where (v > 1)", "root where (v > 1), leaf", "deep where (v > 1)", "plain (id, v) where (v > 1)"]  # fmt: skip
        which = f"for table {chance.choice(targets)}"
        if chance.random() < 0.1:
            which = "for all tables"
        elif version >= 150000 and chance.random() < 0.1:
            which = "for tables in schema public"
        options = [f"publish_via_partition_root = {chance.choice(('true', 'false'))}"]
        if chance.random() < 0.3:
            options.append(
                f"publish = '{chance.choice(('insert', 'insert, update', 'delete', 'update, delete, truncate'))}'"
            )
        if version >= 180000 and chance.random() < 0.5:
            options.append("publish_generated_columns = stored")
        statements.append(f"create publication {name} {which} with ({', '.join(options)})")
    return statements


async def refused(connection: SourceConnection) -> set[str]:
    """Return the relations with rows of which the server refuses updates or deletes."""
    found = set()
    for name in ("plain", "heir", "leaf", "deep"):
        for write in (f"update only {name} set v = 1", f"delete from only {name}"):
            with suppress(SourceRefused):
                await connection.query(write)
                continue
            found.add(name)
    return found
