"""What one process knows of the tokens: those that were shown to it lately, each no older than two seconds while the database answers.

Nothing runs in the background. Whoever finds something a second old has it read anew, while others go on with what is known; who finds
it two seconds old waits for that. Those who wait share a statement, so there is one under way at a time, however many ask.
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
"""Seconds after which something is read anew by the next who needs it."""

STALE = 2.0
"""Seconds after which it is used no more, as long as the database answers."""

AWAY = 60.0
"""Seconds for which it is used when the database doesn't answer."""

PATIENCE = 2.0
"""Seconds that the database has to answer."""

MOST = 10_000
"""Tokens that are remembered."""


class Known(msgspec.Struct, frozen=True, gc=False):
    """A token as a request is judged by it. `expires_at` is in seconds since 1970, infinite for never."""

    name: str
    digest: bytes
    scopes: frozenset[str]
    expires_at: float
    revoked: bool
    read_at: float


class _Round:
    """Ids that are read in one statement."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.over = False
        self.failure: str | None = None


class TokenCache:
    """Finds tokens by their ids, and remembers them.

    Args:
        database: the open database, asked for at each reading.
        clock: seconds, monotonic.
    """

    def __init__(self, database: Callable[[], store.Database], clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, Known] = {}  # the one that was read longest ago comes first
        self._some = False  # there are tokens; it stays so, since their rows do
        self._none_at = -math.inf  # when there was none
        self._next = _Round()
        self._turn = anyio.Lock()
        self._failed_at = -math.inf
        self._changes = 0

    @property
    def surely_none(self) -> bool:
        """Whether no token was ever made, as of a second ago at most. False also when that is not known."""
        return not self._some and self._clock() - self._none_at < RENEWED

    async def none(self) -> bool:
        """Whether no token was ever made. Raises `StoreUnavailable` when it has not been known for a minute."""
        if not self._some:
            await self._renew(None, self._none_at)
        return not self._some

    async def find(self, token_id: str) -> Known | None:
        """The token of this id. Raises `StoreUnavailable` when it has not been known for a minute."""
        known = self._known.get(token_id)
        if known is None or self._clock() - known.read_at >= RENEWED:
            await self._renew(token_id, -math.inf if known is None else known.read_at)
            known = self._known.get(token_id)
        return known

    def changed(self, token_id: str) -> None:
        """This process has made or revoked the token: what was read of it before, or is being read, counts no more."""
        self._changes += 1
        self._some = True
        self._known.pop(token_id, None)

    async def _renew(self, token_id: str | None, read_at: float) -> None:
        """Have it read, unless what is known will do."""
        now = self._clock()
        age = now - read_at
        failing = now - self._failed_at < RENEWED
        if age < RENEWED or (age < STALE and self._turn.locked()) or (age < AWAY and failing):
            return
        if failing:  # it was asked a moment ago; to ask for each request would not help it
            raise StoreUnavailable("The database that has the tokens doesn't answer: try again in a moment.")
        try:
            await self._read(token_id)
        except StoreUnavailable:
            if self._clock() - read_at >= AWAY:
                raise

    async def _read(self, token_id: str | None) -> None:
        """Read it, together with what others want to know at the same time."""
        mine = self._next
        if token_id is not None:
            mine.ids.add(token_id)
        async with self._turn:
            if not mine.over:  # nobody has done it meanwhile, or who began was cancelled
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
