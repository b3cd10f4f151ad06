"""Everything except the data plane, as a Litestar application: the routes under both prefixes,
and their OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import ModuleType

from litestar import Litestar, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from headrace.server.access.effects import check_marks, guard
from headrace.server.framework_errors import error_handler
from headrace.server.openapi.description import config, pages
from headrace.server.routes import (
    captures,
    consumers,
    data_plane,
    databases,
    dead_letters,
    http_consumers,
    messages,
    operations,
    positions,
    schedules,
    sessions,
    sources,
    streams,
    tokens,
)
from headrace.server.routes.context import RouteContext
from headrace.server.routes.inspecting import inspection, jobs
from headrace.server.routes.parameters import refuse_unknown_parameters
from headrace.server.routes.watching import audit, live, samples

PREFIXES = ("/v1", "/api")
TOPICS = (
    streams, messages, inspection, consumers, positions, dead_letters, operations, jobs, http_consumers, tokens, sessions, sources, captures, schedules, databases,
    audit, live, samples, data_plane,
)  # fmt: skip


@cache
def management() -> Litestar:
    """Return the management plane's application. The first call takes some tenths of a second.

    All servers and databases of a process share it. Each request's scope has the `Parts` of its database and its `Caller`.
    """
    handlers = [handler for topic in TOPICS for handler in _handlers_of(topic)]
    check_marks(handlers)
    return Litestar(
        [
            # The OpenAPI description has one prefix only, since both are equal.
            *(
                Router(
                    prefix,
                    route_handlers=handlers,
                    guards=[guard],
                    before_request=refuse_unknown_parameters,
                    include_in_schema=prefix == "/v1",
                )
                for prefix in PREFIXES
            ),
            *pages(),
        ],
        openapi_config=config(),
        dependencies={"context": Provide(RouteContext.of, sync_to_thread=False)},
        exception_handlers={HTTPException: error_handler, Exception: error_handler},
        logging_config=None,
        request_max_body_size=None,  # the server limits bodies before they come here
    )


def _handlers_of(topic: ModuleType) -> Iterable[HTTPRouteHandler]:
    """Return the handlers that a module defines. Those of operations are made of their rows."""
    if topic is operations:
        return operations.ROUTES
    return [found for found in vars(topic).values() if isinstance(found, HTTPRouteHandler)]
