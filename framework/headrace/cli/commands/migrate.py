"""`headrace migrate`."""

from __future__ import annotations

from headrace import store
from headrace.cli.options.common import DatabaseOption
from headrace.cli.options.connection import connected
from headrace.cli.processes.event_loop import run_async


def migrate(*, database: DatabaseOption = None) -> None:
    """Bring the database's schema up to this version of Headrace.

    It is safe to repeat, and to run from several places at once.
    """
    version, steps = run_async(_migrate, database)
    for step in steps:
        print(step)
    print(f"The schema is at version {version}.")


async def _migrate(url: str | None) -> tuple[int, list[str]]:
    async with connected(url, migrate=False) as database:
        steps = await store.migrate(database)
        return await store.schema_version(database), steps
