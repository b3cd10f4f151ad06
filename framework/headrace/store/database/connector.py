"""Opens connections: to one of the addresses of a database URL, with the settings of Headrace, and watched."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg

from headrace.store.connections.connection import Connection, PoolCounters
from headrace.store.connections.driver_parameters import DriverParameters
from headrace.store.connections.keepalive import SERVER_SETTINGS
from headrace.store.database.failure_detector import PROBE_TIMEOUT, FailureDetector

COMMAND_TIMEOUT = 60.0
"""The timeout of a statement that the server is working on, in seconds. `failure_detector.py` detects lost calls much
earlier.
"""

# A session of Headrace has these settings, whatever the role or the database has. Each read of a lease call must
# see the newest state, the functions have strings with backslashes, and connections of the pool may idle.
_OURS = {
    "default_transaction_isolation": "read committed",
    "standard_conforming_strings": "on",
    "idle_session_timeout": "0",
}

# How a transaction of user code gets the setting that the session would have without `_OURS`.
_YOURS = {
    "default_transaction_isolation": "set transaction isolation level {}",
    "standard_conforming_strings": "set local standard_conforming_strings = {}",
}


class Connector:
    """Opens the connections of a `Database`.

    Args:
        dsn: a Postgres URL, as for libpq, for the log.
        parameters: what it says.
        application_name: the name of the connections in `pg_stat_activity`.
        timeout: the timeout for connecting in seconds.
        expire: makes the pool replace its connections, see `FailureDetector`.

    Attributes:
        counters: statistics of the connections.
        detector: watches them.
        granted: whether their role uses the schema through its grants.
        yours: statements that give a transaction of user code the settings that the user has chosen.
    """

    def __init__(
        self,
        dsn: str,
        parameters: DriverParameters,
        application_name: str,
        timeout: float,
        expire: Callable[[], Awaitable[None]],
    ) -> None:
        self._parameters = parameters
        self._application_name = application_name
        self._timeout = timeout
        self._addresses = parameters.addresses
        self._settings: dict[str, str] = {}  # of sessions, once it is known that the server accepts them
        self.yours: tuple[str, ...] = ()
        self.granted = False
        self.counters = PoolCounters()
        self.detector = FailureDetector(dsn, self._connect_probe, expire, self._addresses)

    async def connect(self, **options: Any) -> Connection:
        """Open a connection outside the pool. The caller closes it. Raises asyncpg's own errors."""
        connection: Connection = await self.open(**(self.options() | options))
        await self.watch(connection)
        return connection

    async def open(self, *_: object, timeout: float, **options: Any) -> Any:
        """Open a connection, as asyncpg's pool calls it."""
        return await self.detector.connected(functools.partial(self._connect, timeout, options))

    async def _connect(self, timeout: float, options: dict[str, Any]) -> Any:
        connect = functools.partial(asyncpg.connect, **self._parameters.arguments())
        return await self._addresses.connect(connect, timeout, **options)

    async def watch(self, connection: Any) -> None:
        """Count and watch the statements of a connection that was just opened."""
        connection.begin(self.counters, self.detector, granted=self.granted)

    def options(self) -> dict[str, Any]:
        """The arguments of asyncpg for a connection."""
        return {
            "connection_class": Connection,
            "timeout": self._timeout,
            "command_timeout": COMMAND_TIMEOUT,
            "server_settings": self._session(),
        }

    def forget_settings(self) -> None:
        """Open sessions without settings, until `learn_settings`."""
        self._settings, self.yours = {}, ()

    async def learn_settings(self, probe: asyncpg.Connection[asyncpg.Record]) -> None:
        """Find out which settings the server accepts, and what the user has chosen. For sessions that no pooler gives to
        others."""
        yours = {name: await probe.fetchval("select pg_catalog.current_setting($1)", name) for name in _YOURS}
        self.yours = tuple(_YOURS[name].format(value) for name, value in yours.items() if value != _OURS[name])
        self._settings = _OURS | await _effective_settings(probe)

    async def _connect_probe(self) -> Any:
        """Open a connection for the detector, which does not watch it."""
        options = self.options() | {"timeout": PROBE_TIMEOUT * len(self._addresses), "statement_cache_size": 0}
        return await self._connect(options.pop("timeout"), options)

    def _session(self) -> dict[str, str]:
        """The settings of a session. Those in the URL take precedence, unless transactions of Headrace depend on them."""
        given = {"options": self._parameters.options} if self._parameters.options else {}
        free = self._parameters.settings - _YOURS.keys()
        ours = {name: value for name, value in self._settings.items() if name not in free}
        return {"application_name": self._application_name, **given, **ours}


async def _effective_settings(probe: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    """The session settings that have an effect. This depends on the server's system and on the kind of connection."""
    set_config_query = (
        "select name, set_config(name, value, false) from unnest($1::text[], $2::text[]) as given (name, value)"
    )
    for settings in (SERVER_SETTINGS, {name: SERVER_SETTINGS[name] for name in SERVER_SETTINGS if "tcp" in name}):
        with suppress(asyncpg.PostgresError):  # this server can't check whether its client is connected
            rows = await probe.fetch(set_config_query, list(settings), list(settings.values()))
            return {name: settings[name] for name, value in rows if value != "0"}
    return {}
