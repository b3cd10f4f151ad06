"""Everything but the data plane, by Litestar."""

from __future__ import annotations

from litestar import Litestar

from headrace.server.access import Access
from headrace.server.dataplane import DataPlane
from headrace.server.engine import Engine
from headrace.server.options import Options


def management(engine: Engine, access: Access, data: DataPlane, options: Options) -> Litestar:
    """The routes of the management plane."""
    return Litestar([], openapi_config=None)
