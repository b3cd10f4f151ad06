"""Cache of access tokens in a process. Entries are at most two seconds old while the database
answers.

Nothing runs in the background. A caller that finds an entry one second old reads it again, while
others use the old one. At two seconds old all callers wait for the read. Waiting callers share a
statement, so only one runs at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import anyio
import msgspec

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.tokens import StoredToken

RENEWED = 1.0
"""Age in seconds at which the next caller reads an entry again."""

STALE = 2.0
"""Age in seconds at which an entry is no longer used, while the database answers."""

AWAY = 60.0
"""Age in seconds up to which an entry is used while the database doesn't answer."""

PATIENCE = 2.0
"""Seconds that the database has to answer."""

MOST = 10_000
"""Largest number of cached tokens."""


class Known(msgspec.Struct, frozen=True, gc=False):
    """A cached token. `expires_at` is in seconds since 1970, or infinite."""

    name: str
    digest: bytes
    scopes: frozenset[str]
    expires_at: float
    revoked: bool
    read_at: float


class _Round:
    """Token ids that are read in one statement."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.over = False
        self.failure: str | None = None


class TokenCache:
    """Looks up tokens by their ids, and caches them.

    Args:
        database: returns the open database. It is called at each read.
        clock: monotonic time in seconds.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, Known] = {}  # in the order of their reads
        self._some = False  # a token was created, which stays true since rows are never deleted
        self._none_at = -math.inf  # the last time that no token had been created
        self._next = _Round()
        self._turn = anyio.Lock()
        self._failed_at = -math.inf
        self._changes = 0

    @property
    def surely_none(self) -> bool:
        """Whether no token was ever created, as of a second ago at most. False if that is unknown."""
        return not self._some and self._clock() - self._none_at < RENEWED

    async def none(self) -> bool:
        """Return whether no token was ever created. Raises `StoreUnavailable` if the last
        successful read was over a minute ago."""
        if not self._some:
            await self._renew(None, self._none_at)
        return not self._some

    async def find(self, token_id: str) -> Known | None:
        """Return a token by its id. Raises `StoreUnavailable` if the last successful read of it
        was over a minute ago."""
        known = self._known.get(token_id)
        if known is None or self._clock() - known.read_at >= RENEWED:
            await self._renew(token_id, -math.inf if known is None else known.read_at)
            known = self._known.get(token_id)
        return known

    def changed(self, token_id: str) -> None:
        """Drop a token that this process has created or revoked, and the result of any running read."""
        self._changes += 1
        self._some = True
        self._known.pop(token_id, None)

    async def _renew(self, token_id: str | None, read_at: float) -> None:
        """Read an entry again, unless it is fresh enough."""
        now = self._clock()
        age = now - read_at
        failing = now - self._failed_at < RENEWED
        if age < RENEWED or (age < STALE and self._turn.locked()) or (age < AWAY and failing):
            return
        if failing:  # the database failed a moment ago, and is not queried for each request
            raise StoreUnavailable("The database that has the tokens doesn't answer: try again in a moment.")
        try:
            await self._read(token_id)
        except StoreUnavailable:
            if self._clock() - read_at >= AWAY:
                raise

    async def _read(self, token_id: str | None) -> None:
        """Read an entry, together with those that other callers need at the same time."""
        mine = self._next
        if token_id is not None:
            mine.ids.add(token_id)
        async with self._turn:
            if not mine.over:  # not read meanwhile, or the caller that began was cancelled
                if self._next is mine:
                    self._next = _Round()
                await self._go(mine)
        if mine.failure is not None:
            raise StoreUnavailable(mine.failure)

    async def _go(self, going: _Round) -> None:
        try:
            with anyio.fail_after(PATIENCE):
                await self._fetch(going.ids)
        except (StoreUnavailable, TimeoutError) as error:
            self._failed_at = self._clock()
            going.failure = str(error) or f"The database has not told of the tokens within {PATIENCE:g} s."
        going.over = True

    async def _fetch(self, ids: set[str]) -> None:
        database = self._database()
        while True:
            changes, read_at = self._changes, self._clock()
            some = self._some or await store.any_token(database)
            found = await store.tokens_of(database, ids) if some and ids else []
            if changes == self._changes:
                break
        self._some = self._some or some
        self._none_at = read_at
        self._failed_at = -math.inf
        for token_id in ids:
            self._known.pop(token_id, None)
        for token in found:
            self._known[token.id] = _known(token, read_at)
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]


def _known(token: StoredToken, read_at: float) -> Known:
    return Known(
        name=token.name,
        digest=token.digest,
        scopes=frozenset(token.scopes),
        expires_at=math.inf if token.expires_at is None else token.expires_at.timestamp(),
        revoked=token.revoked_at is not None,
        read_at=read_at,
    )
