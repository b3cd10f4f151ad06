"""Look-ups of the streams and consumers that requests name, within the scopes of their tokens.

A token for some streams learns nothing about others. Missing objects and forbidden ones get the same answer,
and are looked up by the same statements, which read the token's own streams only.
"""

from __future__ import annotations

from headrace.model.errors import UnknownStream, public_text
from headrace.model.keys import looks_like_id
from headrace.model.tokens import Forbidden, Need
from headrace.server.callers import Caller
from headrace.server.data_plane.registry import CachedConsumer, CachedStream
from headrace.server.engine import Engine


class UnknownWithinScopes(Forbidden):
    """No stream of the token has what a request names, which may have been deleted, or never existed, or be
    another token's. The answer is that of `Forbidden`."""


class Lookups:
    """Looks up streams and consumers by their ids or names, and checks access. Ids win over names.

    Args:
        engine: looks up streams and consumers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def stream(self, caller: Caller, ref: str, need: Need) -> CachedStream:
        """Return a stream by its id or name.

        Raises:
            Forbidden: the token lacks the scope, or a token for some streams names another one,
                whether it exists or not.
            UnknownStream, StoreUnavailable.
        """
        streams = caller.streams(need)
        if streams is None:
            return await self._engine.stream(ref)
        found = (await self._engine.streams_named(streams)).get(ref)
        if found is not None:
            return found
        if ref in streams:
            raise UnknownStream(f"The stream {ref!r} does not exist.")
        error = caller.forbidden(f"'{need}:{ref:.80}', or {need!r} for all streams")
        # A name is decided by the scopes alone. An id may be that of a stream of the token that was deleted.
        raise UnknownWithinScopes(public_text(error)) if streams and looks_like_id(ref) else error

    async def consumer(self, caller: Caller, stream: str, ref: str, need: Need) -> CachedConsumer:
        """Return a consumer by its id or name, of a stream given by its id or name. Raises as `stream`,
        and `UnknownConsumer`."""
        if caller.streams(need) is None:
            return self._engine.cached_consumer(stream, ref) or await self._engine.consumer(stream, ref)
        found = await self.stream(caller, stream, need)
        return self._engine.cached_consumer(found.id, ref) or await self._engine.consumer(found.id, ref)

    async def consumer_anywhere(self, caller: Caller, ref: str, need: Need) -> CachedConsumer:
        """Return a consumer by its id, its name, or `stream:name`. For a token for some streams, only
        consumers of these streams count.

        Raises:
            Forbidden: the token lacks the scope, or no stream of the token has such a consumer.
            Problem: several of the streams have a consumer of this name.
            UnknownStream, UnknownConsumer, StoreUnavailable.
        """
        streams = caller.streams(need)
        if streams is None:
            return await self._engine.consumer_anywhere(ref)
        stream, colon, name = ref.partition(":")
        if colon:
            return await self.consumer(caller, stream, name, need)
        found = await self._engine.consumer_among(streams, ref)
        if found is None:
            error = caller.forbidden(f"{need!r} for the stream of the consumer {ref:.80}, or for all streams")
            raise UnknownWithinScopes(public_text(error)) if streams else error
        return found
