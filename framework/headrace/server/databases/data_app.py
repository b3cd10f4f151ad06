"""The app of a further database, which runs beside the server's own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.app.app import App
from headrace.runtime.handlers.dependencies import Dependencies
from headrace.runtime.pipeline.shared import Shared


class DataApp(App):
    """An app without consumers: the janitor, the listener and the attached parts of one database.

    Args:
        dsn: the URL of the database.
        home: the server's own app. Its telemetry and its setting `migrate` count for all databases.
        max_connections: the largest number of connections to this database.
    """

    def __init__(self, dsn: str, home: App, max_connections: int) -> None:
        super().__init__(dsn, max_connections=max_connections, telemetry=False, migrate=home.migrate)
        self._home = home

    async def serve(self, on_up: Callable[[], None]) -> None:
        """Run until `stop`.

        Args:
            on_up: called once it is connected.

        Raises:
            StoreUnavailable, SchemaError: it can't start. Later outages are waited out.
        """
        async with self, self._serving() as service:
            on_up()
            await service.run()

    def _shared(self, dependencies: Dependencies) -> Shared:
        instruments = self._home._instruments
        self._publisher.instruments = instruments
        return msgspec.structs.replace(super()._shared(dependencies), instruments=instruments, surveys=False)
