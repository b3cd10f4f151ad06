"""Routes of further databases: list, add, read, check, remove."""

from __future__ import annotations

from typing import Annotated

from litestar.params import JSONBody
from msgspec import Meta, Struct

from headrace.model.errors import Forbidden
from headrace.model.records import DatabaseInfo
from headrace.model.text.names import NAME
from headrace.server.access import methods
from headrace.server.engine import Engine
from headrace.server.routes.context import Context
from headrace.server.routes.parameters import DatabaseRef
from headrace.server.slashes import unmarked
from headrace.server.wire.common import Listed
from headrace.store.database.references import MAX_REFERENCE, REFERENCE, check_reference, is_allowed


class NewDatabase(Struct, kw_only=True, forbid_unknown_fields=True):
    """A further database to be added."""

    name: Annotated[
        str, Meta(description="Its name.", examples=["eu"], extra_json_schema={"pattern": f"^{NAME.pattern}$"})
    ]
    url_from: Annotated[
        str,
        Meta(
            description="Where the server finds its URL, `env:NAME` or `file:/path`. The operator allows references with"
            " `--database-references`.",
            examples=["env:EU_DATABASE"],
            extra_json_schema={"pattern": REFERENCE, "maxLength": MAX_REFERENCE},
        ),
    ]
    unchecked: Annotated[bool, Meta(description="Whether the server does not connect to it first.")] = False


class RemovedDatabase(Struct):
    """The database that was removed from the list."""

    name: str
    deleted: bool = True


@methods.read("/databases", summary="List databases", tags=["Databases"])
async def list_databases(context: Context) -> Listed[DatabaseInfo]:
    """Returns the further databases by name. `/ready` says which of them answer."""
    await context.check_all_streams("admin")
    return Listed(await context.admin.databases())


@methods.create("/databases", summary="Add a database", tags=["Databases"])
async def add_database(context: Context, data: JSONBody[NewDatabase]) -> DatabaseInfo:
    """Adds a database, in which streams can then be created. 403 unless the operator allows the reference. 409 if the
    name is taken."""
    await context.check_all_streams("admin")
    check_reference(data.url_from)
    if not is_allowed(data.url_from, context.options.database_references):
        raise Forbidden(
            f"The server's operator does not allow the reference {data.url_from:.80}. Add the database on the command line, or"
            " allow it with --database-references."
        )
    added = await context.admin.add_database(data.name, data.url_from, unchecked=data.unchecked)
    _changed(context.engine)
    return added


@methods.remove("/databases/{database:str}", summary="Remove a database", tags=["Databases"])
async def remove_database(context: Context, database: DatabaseRef) -> RemovedDatabase:
    """Removes a database from the list. It keeps its streams, which the server reaches no more."""
    await context.check_all_streams("admin")
    name = unmarked(database)
    await context.admin.remove_database(name)
    _changed(context.engine)
    return RemovedDatabase(name)


def _changed(engine: Engine) -> None:
    if engine.further is not None:
        engine.further.look()
    engine.clear_caches()
