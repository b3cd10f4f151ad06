"""`headrace database add|ls|info|check|rm`: further databases behind a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import JsonOption, YesOption, flag
from headrace.cli.options.times import time_or_dash
from headrace.cli.output.results import print_list, print_result
from headrace.cli.output.stderr import confirm, print_notice
from headrace.model.text.counting import count

if TYPE_CHECKING:
    from headrace.client import Administration

DatabaseName = Annotated[str, Parameter(help="The database's name.")]


def add(
    name: DatabaseName,
    /,
    *,
    url_from: Annotated[
        str,
        Parameter(
            name="--url-from",
            help="Where servers find its URL: env:NAME, an environment variable, or file:/path, a file. The URL itself is not"
            " stored.",
        ),
    ],
    no_check: Annotated[
        bool, flag("Don't connect to it first, as when the reference only leads to a URL where servers run.")
    ] = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Add a database, in which streams can then be created through a server.

    The list of databases is in the database that servers are given. Each of
    the others is a complete Headrace. Servers open a new one within seconds.
    """
    added = administer(backend, lambda admin: admin.add_database(name, url_from, unchecked=no_check))
    print_result(added, json, f"Added the database {name!r}, whose URL is in {url_from}.")


def ls(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List the further databases."""
    databases = administer(backend, lambda admin: admin.databases())
    print_list(
        databases, json, ("database", "url from", "added"), lambda one: (one.name, one.url_from, time_or_dash(one.created_at)),
        empty="There are no further databases. Add one with `headrace database add`.",
    )  # fmt: skip


def check(name: DatabaseName, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """Connect to a database, and check its schema, its names and the rights of its role."""
    result = administer(backend, lambda admin: admin.check_database(name))
    schema = f"its schema has revision {result.revision}" if result.revision else "it has no schema yet"
    print_result(result, json, f"The database {name!r} can be used: {schema}, with {count(result.streams, 'stream')}.")
    if result.conflicts:
        print_notice(
            f"Another database has the names of {len(result.conflicts)} of its objects, so servers don't reach them here:"
            f" {', '.join(result.conflicts[:10])}{', …' if len(result.conflicts) > 10 else ''}. Rename or delete them."
        )


def rm(
    name: DatabaseName,
    /,
    *,
    yes: YesOption = False,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> int:
    """Remove a database from the list.

    It keeps its streams and messages, which servers reach no more.
    """
    if not administer(backend, _rm, name, backend.skips_confirmation(yes)):
        return NOT_DONE
    print_result({"deleted": name}, json, f"Removed the database {name!r} from the list. It keeps its streams.")
    return 0


async def _rm(admin: Administration, name: str, yes: bool) -> bool:
    if not yes:
        database = await admin.database(name)
        if not await confirm(
            f"Remove the database {database.name!r} from the list? Servers will not reach its streams."
        ):
            return False
    await admin.remove_database(name)
    return True
