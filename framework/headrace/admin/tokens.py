"""Access tokens of the server: create, list and revoke."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import MAX_ANSWER_BYTES, check_limit
from headrace.model.durations import Duration
from headrace.model.pages import Page, follow, listing
from headrace.model.tokens import NewToken, TokenInfo, check_lifetime, check_name, mint, parse_all
from headrace.model.watching.audit import Change


class Tokens(Base):
    """The calls about tokens."""

    async def create_token(self, name: str, scopes: Sequence[str], *, expires_in: Duration | None = None) -> NewToken:
        """Create a token for the server. Once the first token exists, the server refuses requests without one.

        Args:
            name: 1 to 64 letters, digits, `.`, `_`, `@` and `-`. You can revoke the token by it.
            scopes: what the token permits: `publish`, `consume` or `admin`, alone or for one stream
                as in `publish:orders`.
            expires_in: seconds, or text such as "30d". None for a token that never expires.

        Returns:
            The token. Only this call returns its text, since only its digest is stored.

        Raises:
            TokenExists: a token has the name, possibly a revoked one.
        """
        minted = mint()
        name, parsed, lifetime = check_name(name), parse_all(scopes), check_lifetime(expires_in)
        change = Change(
            action="token.create", kind="token", name=name, details={"scopes": parsed, "expires_in": lifetime}
        )
        info = await self._change(
            change, lambda connection: store.add_token(connection, name, minted, parsed, lifetime)
        )
        return NewToken(token=minted.text, **msgspec.structs.asdict(info))

    @listing
    async def tokens(self, *, limit: int | None = None) -> AsyncIterator[list[TokenInfo]]:
        """List tokens by name, including expired and revoked ones, at most `limit`. None for all."""
        check_limit(limit)

        async def read(after: str | None, limit: int) -> Page[TokenInfo]:
            return await store.tokens(self._database, after=after, limit=limit, max_bytes=MAX_ANSWER_BYTES)

        async for page in follow(read, lambda token: token.name, limit=limit):
            yield page

    async def revoke_token(self, ref: str) -> TokenInfo:
        """Revoke a token by its id or name. Servers refuse it within two seconds. It stays in the list.

        Raises:
            UnknownToken.
        """
        change = Change(action="token.revoke", kind="token", name=ref)

        async def revoke(connection: store.Executor) -> TokenInfo:
            revoked = await store.revoke_token(connection, ref)
            change.name, change.details = revoked.name, {"id": revoked.id}
            return revoked

        return await self._change(change, revoke)


async def delete_tokens(admin: Tokens) -> int:
    """Delete all tokens, so that servers need none. Returns their number. A server never does it."""
    change = Change(action="token.delete_all", kind="token", name="all")

    async def delete(connection: store.Executor) -> int:
        change.details["count"] = count = await store.delete_tokens(connection)
        change.skipped = not count
        return count

    return await admin._change(change, delete)
