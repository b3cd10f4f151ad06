"""`headrace grant publish|consume|observe|admin|ls|restore` and `headrace revoke`: what database roles may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.connection.connect import open_database
from headrace.cli.connection.operator import operator
from headrace.cli.options.common import DatabaseOption, JsonOption, flag
from headrace.cli.output.results import print_list
from headrace.cli.processes.event_loop import run_async
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.store import Grant

RoleArgument = Annotated[str, Parameter(name="ROLE", help="The name of the database role.")]
StreamOption = Annotated[
    list[str],
    Parameter(
        name="--stream",
        negative="",
        show_default=False,
        help="Only for this stream. Repeat for several. Default: all streams, also those created later.",
    ),
]
SqlOption = Annotated[bool, flag("Print the SQL, and change nothing.")]


def _grants(privilege: str, about: str) -> Callable[..., None]:
    """Make the command that grants a privilege."""

    def command(
        role: RoleArgument,
        /,
        *,
        stream: StreamOption = [],  # noqa: B006 - not changed
        sql: SqlOption = False,
        database: DatabaseOption = None,
    ) -> None:
        from headrace import store

        if sql:
            print(store.grant_sql(privilege, role, stream))
        else:
            run_async(_give, database, privilege, role, stream)
            print(f"The role {role} has {privilege} for {', '.join(stream) or 'all streams'}.")

    command.__doc__ = about
    return command


publish = _grants("publish", "Let a role publish.\n\nIt can't read messages, nor see other streams.")
consume = _grants(
    "consume",
    "Let a role run the existing consumers, and read messages.\n\nIt can't create, change, move or delete consumers.",
)
observe = _grants("observe", "Let a role see the figures of streams and consumers.\n\nIt sees no message.")
admin = _grants(
    "admin",
    "Let a role do everything but own the schema.\n\n"
    "For all streams it may create streams and sources, and do the maintenance.",
)


def ls(*, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List the grants of all roles."""
    print_list(
        run_async(_list, database),
        json,
        ("role", "may", "stream", "since"),
        lambda g: (g.role + _remark(g), g.privilege, g.stream or "all", g.granted_at),
        empty="No role has a grant. Only the schema's owner, its members and superusers can use it.",
    )


def restore(*, database: DatabaseOption = None) -> None:
    """Let the grants of a dump of another server count, for the roles of the same names.

    Read `headrace grant ls` first: a role that has got another name since the dump gets nothing, and neither does a role that this server lacks.
    """
    restored = run_async(_restore, database)
    print(f"Restored {count(restored, 'grant')}.")


def revoke(
    privilege: Annotated[str, Parameter(name="PRIVILEGE", help="publish, consume, observe or admin.")],
    role: RoleArgument,
    /,
    *,
    stream: StreamOption = [],  # noqa: B006 - not changed
    sql: SqlOption = False,
    database: DatabaseOption = None,
) -> None:
    """Take a privilege from a database role.

    Processes that run as the role fail at their next call.
    """
    from headrace import store

    if sql:
        print(store.revoke_sql(privilege, role, stream))
    else:
        removed = run_async(_revoke, database, privilege, role, stream)
        print(f"Removed {count(removed, 'grant')} of the role {role}.")


def _remark(grant: Grant) -> str:
    if not grant.exists:
        return " (no such role)"
    return "" if grant.bound else " (of another server, run: headrace grant restore)"


async def _give(url: str | None, privilege: str, role: str, streams: list[str]) -> None:
    from headrace import store

    async with open_database(url) as database:
        await store.grant(database, privilege, role, streams, actor=operator())


async def _revoke(url: str | None, privilege: str, role: str, streams: list[str]) -> int:
    from headrace import store

    async with open_database(url) as database:
        return await store.revoke(database, privilege, role, streams, actor=operator())


async def _restore(url: str | None) -> int:
    from headrace import store

    async with open_database(url) as database:
        return await store.restore_grants(database, actor=operator())


async def _list(url: str | None) -> list[Grant]:
    from headrace import store

    async with open_database(url) as database:
        return await store.grants(database)
