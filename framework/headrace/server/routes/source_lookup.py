"""Look-up of the source that a request names."""

from __future__ import annotations

from typing import Annotated

from litestar.params import Parameter

from headrace.model.errors import UnknownSource
from headrace.model.sources import SourceInfo
from headrace.server.routes.access import AnyRequest, RouteContext
from headrace.server.routes.slashes import unmarked

SourceRef = Annotated[str, Parameter(description="A source, by its id or name.")]


async def found(context: RouteContext, request: AnyRequest, ref: str) -> SourceInfo:
    """Look up a source and check the caller's access. A caller without access to all streams gets
    an access error, which doesn't reveal whether the source exists.

    A webhook requires `admin` of the stream that it fills. A source that captures tables requires
    `admin` of all streams, because it reads a database by a role that may see more than the caller
    may.
    """
    try:
        source = await context.admin.source(unmarked(ref))
    except UnknownSource:
        await context.all(request, "admin")
        raise
    if source.kind == "postgres":
        await context.all(request, "admin")
    await context.named(request, source.stream, "admin")
    return source
