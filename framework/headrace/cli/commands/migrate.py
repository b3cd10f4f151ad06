"""`headrace migrate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace import store
from headrace.cli.connection.connect import open_database
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import DatabaseOption, flag
from headrace.cli.options.times import duration
from headrace.cli.processes.event_loop import run_async
from headrace.model.errors import HeadraceError, SchemaError
from headrace.store.database.references import resolve

OwnerOption = Annotated[
    str | None,
    Parameter(
        name="--owner",
        show_default=False,
        help="The role that owns the schema, and all streams created later. It is created without a login if it does not"
        " exist. Default: the present owner, or the user of the database URL.",
    ),
]


def migrate(
    *,
    owner: OwnerOption = None,
    database: DatabaseOption = None,
    all_databases: Annotated[
        bool,
        flag(
            "Also upgrade the further databases that `headrace database ls` lists, each with the URL as it is found here."
        ),
    ] = False,
    plan: Annotated[bool, flag("Print what would be done, with the locks, and change nothing.")] = False,
    check: Annotated[
        bool,
        flag(
            "Change nothing. Exit with 0 if the schema is up to date, 1 if it must be upgraded, or 78 if this version is too old for it."
        ),
    ] = False,
    to: Annotated[
        int | None,
        Parameter(
            name="--to",
            validator=Number(gte=1),
            show_default=False,
            help="The revision that the schema must have afterwards. Fail, and change nothing, if this version can't upgrade to it.",
        ),
    ] = None,
    reinstall: Annotated[
        bool, flag("Replace the functions also if the schema is up to date, as after a manual change.")
    ] = False,
    lock_timeout: Annotated[
        str, Parameter(name="--lock-timeout", help="How long others may queue behind each try to lock a table.")
    ] = "200ms",
    timeout: Annotated[
        str | None,
        Parameter(name="--timeout", show_default=False, help="When to give up, with exit code 75. Default: never."),
    ] = None,
) -> int:
    """Create or upgrade the schema of the database, to this version of Headrace.

    You can repeat it, and run it from several places together. A schema of a
    later version is left alone. Run it as the owner of the schema, as a member
    of the owner, or as a superuser.

    It waits for locks only a moment, gives way to the work of others, and tries
    again. It prints the sessions and processes that it waits for.
    """
    if plan and check:
        raise UsageError("--plan and --check exclude each other. Give one of them.")
    if owner is not None and (plan or check):
        raise UsageError("--owner changes the schema. Leave it out with --plan and --check.")
    if all_databases and (plan or check or owner is not None or to is not None):
        raise UsageError("--all-databases only goes with --database, --reinstall, --lock-timeout and --timeout.")
    if plan or check:
        return _report(run_async(_plan, database, to), check=check)
    patience = store.Patience(
        lock_timeout=duration(lock_timeout, "--lock-timeout"),
        timeout=None if timeout is None else duration(timeout, "--timeout"),
        report=_print_reasons,
    )
    version, steps = run_async(_migrate, database, owner, to, reinstall, patience)
    for step in steps:
        print(step)
    print(f"The schema has revision {version}.")
    return 0 if not all_databases else run_async(_migrate_further, database, reinstall, patience)


async def _migrate_further(url: str | None, reinstall: bool, patience: store.Patience) -> int:
    """Upgrade the further databases, each as far as it can be reached. Returns the exit code."""
    async with open_database(url, migrate=False) as home:
        listed = await store.databases(home)
    left: list[str] = []
    for one in listed:
        try:
            version, steps = await _migrate(resolve(one.url_from), None, None, reinstall, patience)
        except HeadraceError as error:
            left.append(one.name)
            print(f"{one.name}: {error}", file=sys.stderr)
            continue
        for step in steps:
            print(f"{one.name}: {step}")
        print(f"{one.name}: The schema has revision {version}.")
    if left:
        print(f"Not upgraded: {', '.join(left)}. Repeat this once they can be reached.", file=sys.stderr)
    return NOT_DONE if left else 0


async def _migrate(
    url: str | None, owner: str | None, to: int | None, reinstall: bool, patience: store.Patience
) -> tuple[int, list[str]]:
    async with open_database(url, migrate=False) as database:
        if to is not None:
            state = await store.schema_state(database)
            _require_reachable(state, to)
            if state.revision == to and not reinstall and owner is None:
                return to, []
        steps = await store.migrate(database, owner=owner, reinstall=reinstall, patience=patience)
        return await store.schema_version(database), steps


async def _plan(url: str | None, to: int | None) -> store.Plan:
    async with open_database(url, migrate=False) as database:
        plan = await store.plan_migration(database)
        if to is not None and plan.refusal is None:
            _require_reachable(plan.state, to)
        return plan


def _require_reachable(state: store.SchemaState, to: int) -> None:
    """Raise `SchemaError` if `migrate` can't bring the schema to revision `to`."""
    newest = store.newest_revision()
    if to != state.revision and not state.revision < to == newest:
        raise SchemaError(
            f"The schema has revision {state.revision}, and this version of Headrace can only upgrade it to revision {newest},"
            f" not to {to}. Use the version of Headrace that has revision {to}, or leave out --to."
        )


def _report(plan: store.Plan, *, check: bool) -> int:
    if plan.refusal is not None:
        raise SchemaError(plan.refusal)
    state = plan.state
    if state.revision == 0:
        print("The database has no schema of Headrace.")
    else:
        print(f"The schema has revision {state.revision}, and serves processes from revision {state.serves_from} on.")
    print(f"This Headrace has revision {store.newest_revision()}.")
    if not plan.migrations:
        print("Nothing is to be done.")
        return 0
    for migration in plan.migrations:
        locks = ", ".join(f"{table} ({mode})" for table, mode in migration.locks) if state.revision else ""
        print(f"Would apply migration {migration.version} ({migration.name}). Locks: {locks or 'none'}.")
    print(
        "Would create or replace the functions, and views that differ. Locks: the views that differ (access exclusive)."
    )
    for process in plan.in_the_way:
        print(f"Would wait for {process}.")
    return NOT_DONE if check else 0


def _print_reasons(reasons: Sequence[str]) -> None:
    print(f"waiting for {'; '.join(reasons)}", file=sys.stderr, flush=True)
