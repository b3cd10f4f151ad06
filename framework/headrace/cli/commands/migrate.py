"""`headrace migrate`."""

from __future__ import annotations

from headrace import store
from headrace.cli.connection.connect import open_database
from headrace.cli.options.common import DatabaseOption
from headrace.cli.processes.event_loop import run_async


def migrate(*, database: DatabaseOption = None) -> None:
    """Create or upgrade the schema of the database, to this version of Headrace.

    You can repeat it, and run it from several places at once.
    """
    version, steps = run_async(_migrate, database)
    for step in steps:
        print(step)
    print(f"The schema is at version {version}.")


async def _migrate(url: str | None) -> tuple[int, list[str]]:
    async with open_database(url, migrate=False) as database:
        steps = await store.migrate(database)
        return await store.schema_version(database), steps
