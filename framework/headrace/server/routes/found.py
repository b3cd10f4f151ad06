"""The source that a request is about."""

from __future__ import annotations

from typing import Annotated

from litestar.params import Parameter

from headrace.model.errors import UnknownSource
from headrace.model.sources import SourceInfo
from headrace.server.routes.desk import AnyRequest, Desk
from headrace.server.routes.slashes import unmarked

SourceRef = Annotated[str, Parameter(description="A source, by its id or name.")]


async def found(desk: Desk, request: AnyRequest, ref: str) -> SourceInfo:
    """The source, once it is known that the caller may. Who may not know whether there is one is told that he may not.

    A webhook takes `admin` of the stream that it fills. One that captures tables takes it of all streams: it reads a database by a role that
    may see more than the caller may.
    """
    try:
        source = await desk.admin.source(unmarked(ref))
    except UnknownSource:
        await desk.all(request, "admin")
        raise
    if source.kind == "postgres":
        await desk.all(request, "admin")
    await desk.named(request, source.stream, "admin")
    return source
