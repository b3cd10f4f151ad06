"""Read messages without decoding their JSON. `Admin` returns the same messages as Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from headrace import store
from headrace.admin.base import Base
from headrace.admin.inspection import Searches
from headrace.admin.journeys import Journeys
from headrace.admin.validation import RAW_ANSWER, check_limit, condition_of
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.keys import check_key
from headrace.model.pages import Page
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage
from headrace.model.watching.journeys import Journey
from headrace.model.watching.operations import SearchStep
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.errors import Problem

SEARCH_TIME = 3.0
"""Seconds after which a search for the latest message of a key ends, at the end of a step."""


class RawMessages(Base):
    """Reads messages. Data and headers are `msgspec.Raw`. Everything else is as in `Admin`."""

    async def messages(self, stream: str, chosen: store.SeqRange, *, limit: int, newest: bool) -> Page[StoredMessage]:
        """Return messages of a stream in seq order."""
        check_limit(limit)
        async with self._bounded(chosen.where, stream) as executor:
            return await store.messages(executor, stream, chosen, limit=limit, newest=newest, contents=RAW_ANSWER)

    async def message(self, stream: str, key: str, before: int | None) -> StoredMessage:
        """Return the latest message of a key, of those before a seq if one is given.

        Raises:
            Problem: there is none (404), or the search takes longer than `SEARCH_TIME` and has to be continued (409).
        """
        until = monotonic() + SEARCH_TIME
        while True:
            chosen = store.SeqRange(filters=(check_key(key),), end_seq=None if before is None else before - 1)
            found = await self.messages(stream, chosen, limit=1, newest=True)
            if found:
                return found[0]
            if not found.more:
                raise Problem(404, "unknown_key", f"The stream {stream!r} has no message with the key {key!r}.")
            before = found.reached
            if monotonic() > until:
                raise Problem(
                    409,
                    "not_reached",
                    f"The key {key!r} is not among the messages from seq {before} on, and earlier ones were not searched. Continue with"
                    f" before={before}, or set `index_keys` of the stream.",
                    more={"before": before},
                )

    async def journey(self, stream: str, seq: int, *, limit: int, after: str | None) -> Journey | None:
        """Return the journey of a message."""
        return await Journeys.of(self).read(stream, seq, limit=limit, after=after, raw=True)

    async def search(self, stream: str, **options: Any) -> SearchStep:
        """Do one step of a search, with the options of `Admin.search`."""
        return await Searches.of(self).step(stream, **options, contents=RAW_ANSWER)

    async def peek(
        self,
        consumer: CachedConsumer,
        *,
        limit: int,
        above: int = 0,
        below: int | None = None,
        states: Sequence[str] | None = None,
    ) -> Page[PeekedMessage]:
        """Return a consumer's messages in flight, parked, blocked and next, at most `limit` of each state: the first
        ones, or the last if `below` is given.
        """
        check_limit(limit)
        async with self._bounded(None, consumer.stream.name) as executor:
            return await store.peek(
                executor, consumer.number, limit=limit, after=above, before=below, states=states, contents=RAW_ANSWER
            )

    async def dead_letters(
        self,
        consumer: CachedConsumer,
        selection: DeadLetterCriteria,
        *,
        limit: int,
        above: int = 0,
        below: int | None = None,
    ) -> Page[DeadLetter]:
        """Return the dead letters that match, in seq order: the first ones, or the last if `below` is given."""
        check_limit(limit)
        async with self._bounded(condition_of(selection.get("where")), consumer.stream.name) as executor:
            return await store.dead_letters(
                executor, consumer.number, selection, above=above, below=below, limit=limit, contents=RAW_ANSWER
            )
