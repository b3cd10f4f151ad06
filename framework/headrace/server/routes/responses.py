"""Conversion of the server's own responses into Litestar's."""

from __future__ import annotations

from typing import Any

from litestar import Response as LitestarResponse

from headrace.server.callers import CALLER
from headrace.server.http import Endpoint, Request, Response
from headrace.server.routes.context import AnyRequest
from headrace.server.slashes import unmarked


async def call(request: AnyRequest, endpoint: Endpoint, *names: str) -> LitestarResponse[Any]:
    """Call an endpoint that the server dispatches before Litestar does. `names` are those in the path."""
    pieces, caller = (await request.body(),), request.scope["state"][CALLER]
    own_request = Request(request.scope, request.receive, tuple(map(unmarked, names)), pieces, caller)  # type: ignore[arg-type]
    response = await endpoint(own_request)
    if response is None:  # the client has disconnected
        return LitestarResponse(b"", status_code=204)
    return litestar_response(response)


def litestar_response(response: Response) -> LitestarResponse[bytes]:
    """Convert a response."""
    headers = {name.decode(): value.decode("latin-1") for name, value in response.headers}
    return LitestarResponse(response.body, status_code=response.status, headers=headers, media_type="application/json")
