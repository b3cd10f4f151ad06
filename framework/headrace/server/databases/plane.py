"""The part of a server that belongs to one database."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.app.app import App
from headrace.server.access.origins import OriginPolicy
from headrace.server.access.scopes import Access
from headrace.server.background.jobs import JobRunner
from headrace.server.background.recent_events import RecentEvents
from headrace.server.dialects.dispatch import DataPlane
from headrace.server.dialects.webhooks import Webhooks
from headrace.server.engine import Engine
from headrace.server.options import Options
from headrace.server.push import PushConsumers
from headrace.server.push.addresses import AllowedAddresses
from headrace.server.routes.context import Parts
from headrace.server.transport.limits import Limits
from headrace.sources.postgres.capture.capturing import Capturing


class Plane:
    """The engine, the endpoints, the jobs, the push consumers and the sources of one database. They work while its app runs.

    Args:
        app: the app with the database.
        access, limits, origins, options: those of the server, which all databases share.
        name: the name of the database. None for the server's own.

    Attributes:
        parts: what the routes of the management API need.
        captures: whether it captures the tables of sources.
    """

    def __init__(
        self,
        app: App,
        access: Access,
        limits: Limits,
        origins: OriginPolicy,
        options: Options,
        *,
        name: str | None = None,
    ) -> None:
        self.app = app
        self.name = name
        allowed = AllowedAddresses(options.push_allow)
        self.engine = Engine(app, refusal=lambda address: allowed.refusal(address, "connect"), options=options)
        self.data_plane = DataPlane(self.engine, limits)
        self.recent_events = RecentEvents()
        self.webhooks = Webhooks(self.engine, access, limits, origins, self.recent_events)
        self.parts = Parts(self.engine, access, self.data_plane, self.webhooks, options)
        app.attach(self.engine)
        self.jobs = JobRunner()
        app.attach(self.jobs)
        self.engine.look_for_jobs = self.jobs.look
        app.attach(self.recent_events)
        self.push_consumers = PushConsumers(
            options.push_allow, options.push_refresh_interval, self.recent_events.answered
        )
        app.attach(self.push_consumers)
        self.engine.on_clear_caches(self.push_consumers.refresh)
        self.captures = options.capture and find_spec("psycopg") is not None
        if options.capture:
            capturing = Capturing(database_of=self.engine.database_of)
            app.attach(capturing)
            self.engine.on_clear_caches(capturing.look)
