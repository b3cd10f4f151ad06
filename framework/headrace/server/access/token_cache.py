"""Cache of access tokens in a process. Entries are at most two seconds old while the database
answers.

Nothing runs in the background. A caller that finds an entry one second old reads it again, while
others use the old one. At two seconds old all callers wait for the read. Waiting callers share a
statement, so only one runs at a time. It also reads the other tokens that were used since the last
one, so that many tokens in use cost no more statements than one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice

import anyio
import msgspec

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.tokens import StoredToken

REFRESH_AFTER = 1.0
"""Age in seconds at which the next caller reads an entry again."""

MAX_AGE = 2.0
"""Age in seconds at which an entry is no longer used, while the database answers."""

MAX_AGE_IN_OUTAGE = 60.0
"""Age in seconds up to which an entry is used while the database doesn't answer."""

TIMEOUT = 2.0
"""Default of the seconds that the database has to answer."""

MAX_TOGETHER = 500
"""The most tokens that were used lately and are read along with another one."""

MAX_TOKENS = 10_000
"""Default of the largest number of cached tokens."""


class CachedToken(msgspec.Struct, frozen=True, gc=False):
    """A cached token. `expires_at` is in seconds since 1970, or infinite."""

    name: str
    digest: bytes
    scopes: frozenset[str]
    expires_at: float
    revoked: bool
    read_at: float


class _SharedRead:
    """One read of the tokens that several callers need."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.done = False
        self.failure: str | None = None


class TokenCache:
    """Looks up tokens by their ids, and caches them.

    Args:
        database: returns the open database. It is called at each read.
        clock: monotonic time in seconds.
        max_tokens: largest number of cached tokens.
        timeout: seconds that the database has to answer.
    """

    def __init__(
        self,
        database: Callable[[], store.Database],
        clock: Callable[[], float] = time.monotonic,
        *,
        max_tokens: int = MAX_TOKENS,
        timeout: float = TIMEOUT,
    ) -> None:
        self._database = database
        self._clock = clock
        self._max_tokens = max_tokens
        self._timeout = timeout
        self._tokens: dict[str, CachedToken] = {}  # in the order of their reads
        self._used: set[str] = set()  # since the last read
        self._any = False  # a token existed at the last read, perhaps a revoked one
        self._any_read_at = -math.inf  # the time of that read
        self._next = _SharedRead()
        self._lock = anyio.Lock()
        self._failed_at = -math.inf
        self._changes = 0

    @property
    def known_empty(self) -> bool:
        """Whether no token exists, as of a second ago at most. False if that is unknown."""
        return not self._any and self._clock() - self._any_read_at < REFRESH_AFTER

    async def empty(self) -> bool:
        """Return whether no token exists. A server that had a token stays closed while the database
        doesn't answer.

        Raises:
            StoreUnavailable: none existed at the last successful read, which was over a minute ago.
        """
        try:
            await self._refresh(None, self._any_read_at)
        except StoreUnavailable:
            if not self._any:
                raise
        return not self._any

    async def find(self, token_id: str) -> CachedToken | None:
        """Return a token by its id. Raises `StoreUnavailable` if the last successful read of it
        was over a minute ago."""
        token = self._tokens.get(token_id)
        if token is None or self._clock() - token.read_at >= REFRESH_AFTER:
            await self._refresh(token_id, -math.inf if token is None else token.read_at)
            token = self._tokens.get(token_id)
        elif len(self._used) < MAX_TOGETHER:
            self._used.add(token_id)
        return token

    def last_read(self, token_id: str) -> CachedToken | None:
        """Return a token as it was last read, however long ago. None if it isn't cached."""
        return self._tokens.get(token_id)

    def changed(self, token_id: str) -> None:
        """Drop a token that this process has created or revoked, and the result of any running read."""
        self._changes += 1
        self._any, self._any_read_at = True, self._clock()
        self._tokens.pop(token_id, None)

    async def _refresh(self, token_id: str | None, read_at: float) -> None:
        """Read an entry again, unless it is fresh enough."""
        now = self._clock()
        age = now - read_at
        failing = now - self._failed_at < REFRESH_AFTER
        if age < REFRESH_AFTER or (age < MAX_AGE and self._lock.locked()) or (age < MAX_AGE_IN_OUTAGE and failing):
            return
        if failing:  # the database failed a moment ago, and is not queried for each request
            raise StoreUnavailable("The database with the access tokens does not answer. Try again in a moment.")
        try:
            await self._read(token_id)
        except StoreUnavailable:
            if self._clock() - read_at >= MAX_AGE_IN_OUTAGE:
                raise

    async def _read(self, token_id: str | None) -> None:
        """Read an entry, together with those that other callers need at the same time."""
        read = self._next
        if token_id is not None:
            read.ids.add(token_id)
        async with self._lock:
            if not read.done:  # not read meanwhile, or the caller that began was cancelled
                if self._next is read:
                    self._next = _SharedRead()
                await self._run(read)
        if read.failure is not None:
            raise StoreUnavailable(read.failure)

    async def _run(self, read: _SharedRead) -> None:
        if read.ids or self._any:  # whoever asks whether there are tokens asks for one of them next
            others = (one for one in self._used if one in self._tokens and one not in read.ids)
            read.ids |= set(islice(others, max(0, self._max_tokens - len(read.ids))))
            self._used.clear()
        try:
            with anyio.fail_after(self._timeout):
                await self._fetch(read.ids)
        except (StoreUnavailable, TimeoutError) as error:
            self._failed_at = self._clock()
            read.failure = (
                str(error)
                or f"The database did not return the access tokens within {self._timeout:g} s. Try again."  # public: raised as StoreUnavailable
            )
        read.done = True

    async def _fetch(self, ids: set[str]) -> None:
        database = self._database()
        while True:
            changes, read_at = self._changes, self._clock()
            found = await store.tokens_of(database, ids) if self._any and ids else []
            any_token = bool(found) or await store.any_token(database)
            if any_token and ids and not self._any:
                found = await store.tokens_of(database, ids)
            if changes == self._changes:
                break
        self._any, self._any_read_at = any_token, read_at
        self._failed_at = -math.inf
        for token_id in ids:
            self._tokens.pop(token_id, None)
        for token in found:
            self._tokens[token.id] = _cached(token, read_at)
        while len(self._tokens) > self._max_tokens:
            del self._tokens[next(iter(self._tokens))]


def _cached(token: StoredToken, read_at: float) -> CachedToken:
    return CachedToken(
        name=token.name,
        digest=token.digest,
        scopes=frozenset(token.scopes),
        expires_at=math.inf if token.expires_at is None else token.expires_at.timestamp(),
        revoked=token.revoked_at is not None,
        read_at=read_at,
    )
