"""Everything except the data plane, as a Litestar application: the routes under both prefixes,
and their OpenAPI description."""

from __future__ import annotations

from litestar import Litestar, Router
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp

from headrace.server.access.scopes import Access
from headrace.server.dialects.dispatch import DataPlane
from headrace.server.engine import Engine
from headrace.server.framework_errors import error_handler
from headrace.server.openapi.description import config, pages
from headrace.server.options import Options
from headrace.server.routes import (
    consumers,
    data_plane,
    dead_letters,
    http_consumers,
    messages,
    overview,
    positions,
    schedules,
    sources,
    streams,
    tokens,
)
from headrace.server.routes.databases import management as databases
from headrace.server.routes.parameters import refuse_unknown_parameters
from headrace.server.slashes import marking

PREFIXES = ("/v1", "/api")
TOPICS = (streams, messages, consumers, positions, dead_letters, http_consumers, overview, tokens, sources, schedules)


def management(engine: Engine, access: Access, plane: DataPlane, options: Options) -> ASGIApp:
    """Make the management plane's application."""
    handlers = [handler for topic in TOPICS for handler in topic.routes(engine, access)]
    handlers += databases.routes(engine, access, options)
    handlers += data_plane.routes(plane)
    app = Litestar(
        [
            # The OpenAPI description has one prefix only, since both are equal.
            *(
                Router(
                    prefix,
                    route_handlers=handlers,
                    before_request=refuse_unknown_parameters,
                    include_in_schema=prefix == "/v1",
                )
                for prefix in PREFIXES
            ),
            *pages(),
        ],
        openapi_config=config(),
        exception_handlers={HTTPException: error_handler, Exception: error_handler},
        logging_config=None,
        request_max_body_size=options.max_body,
    )
    return marking(app)
