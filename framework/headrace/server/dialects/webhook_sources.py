"""Look-up of webhook sources by name. Anyone may ask for any name without a token, so the number of
queries must not depend on the number of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar
from uuid import UUID

import anyio
import msgspec

from headrace import store
from headrace.model.errors import HeadraceError, UnknownSource
from headrace.model.sources import SourceInfo
from headrace.model.text.names import NAME
from headrace.server.data_plane.lookup_cache import CACHE_TTL, MAX_ENTRIES
from headrace.sources.webhook import WebhookSpec

T = TypeVar("T")

MISSING_TTL = 1.0
"""Cache TTL in seconds of the fact that a source does not exist."""

MISSING_INTERVAL = 0.1
"""Least time in seconds between two queries while unknown names are asked for. Look-ups of that time
share the next query."""

_MAX_NAME = 48


class CachedWebhook(msgspec.Struct, frozen=True):
    """A webhook source, which may be used until a time of the clock."""

    id: UUID
    spec: WebhookSpec
    until: float


class _LookUp:
    """The look-up of one name, for all requests that wait for it."""

    def __init__(self) -> None:
        self.source: CachedWebhook | None = None
        self.error: HeadraceError | None = None
        self.done = False


class WebhookSources:
    """Looks up webhook sources, and caches them for `CACHE_TTL` seconds. Look-ups that arrive during a
    query share the next one.

    Args:
        database: returns the open database. It is called at each query.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._found: dict[str, CachedWebhook] = {}
        self._missing: dict[str, float] = {}  # by name, until when
        self._waiting: dict[str, _LookUp] = {}
        self._querying = anyio.Lock()
        self._next_query = float("-inf")  # in the event loop's time
        self._generation = 0

    def clear(self) -> None:
        """Forget everything, since a source was created, changed or deleted."""
        self._generation += 1
        self._found.clear()
        self._missing.clear()

    async def find(self, name: str) -> CachedWebhook:
        """Return a webhook source. Raises `UnknownSource`, `StoreUnavailable`."""
        if not NAME.fullmatch(name):
            raise UnknownSource(f"The source {name[:_MAX_NAME]!r} does not exist.")
        now = self._clock()
        cached = self._found.get(name)
        if cached is not None and cached.until > now:
            return cached
        if self._missing.get(name, now) > now:
            raise _unknown(name)
        return await self._look_up(name)

    async def _look_up(self, name: str) -> CachedWebhook:
        look_up = self._waiting.get(name)
        if look_up is None:
            look_up = self._waiting[name] = _LookUp()
        async with self._querying:  # the first request that gets it asks for all
            if not look_up.done:
                await asyncio.sleep(max(0.0, self._next_query - asyncio.get_running_loop().time()))
                await self._query()
        if look_up.error is not None:
            raise look_up.error.with_traceback(None)
        if look_up.source is None:
            raise _unknown(name)
        return look_up.source

    async def _query(self) -> None:
        """Look up all names that requests wait for."""
        look_ups, self._waiting = self._waiting, {}
        generation = self._generation
        found: Mapping[str, SourceInfo] = {}
        error: HeadraceError | None = None
        try:
            found = {one.name: one for one in await store.webhook_sources(self._database(), list(look_ups))}
        except HeadraceError as failure:
            error = failure
        except BaseException:  # this request was cancelled, and the next one asks
            self._waiting = look_ups | self._waiting
            raise
        if len(found) < len(look_ups):
            self._next_query = asyncio.get_running_loop().time() + MISSING_INTERVAL
        for name, look_up in look_ups.items():
            look_up.done, look_up.error = True, error
            if error is None:
                self._settle(name, look_up, found.get(name), is_current=generation == self._generation)

    def _settle(self, name: str, look_up: _LookUp, info: SourceInfo | None, *, is_current: bool) -> None:
        """Set the result of a look-up. It is cached unless the caches were cleared during the query."""
        now = self._clock()
        if info is not None:
            try:
                spec = WebhookSpec.stored(info.name, info.stream, info.settings)
                look_up.source = CachedWebhook(UUID(info.id), spec, now + CACHE_TTL)
            except HeadraceError as error:
                look_up.error = error
        if is_current and look_up.source is not None:
            _put(self._found, name, look_up.source)
        elif is_current and info is None:
            _put(self._missing, name, now + MISSING_TTL)


def _unknown(name: str) -> UnknownSource:
    return UnknownSource(f"The webhook source {name!r} does not exist.")


def _put(cache: dict[str, T], name: str, value: T) -> None:
    if len(cache) >= MAX_ENTRIES:
        cache.clear()
    cache[name] = value
