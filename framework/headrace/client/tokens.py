"""Calls about the access tokens of a server."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.base import Base, Listed
from headrace.client.request import delete, get, post
from headrace.model.durations import Duration, seconds
from headrace.model.tokens import NewToken, TokenInfo


class Tokens(Base):
    """The calls about tokens. See `headrace.admin`."""

    async def create_token(self, name: str, scopes: Sequence[str], *, expires_in: Duration | None = None) -> NewToken:
        """Create a token. Only this call returns its text."""
        lasts = None if expires_in is None else round(seconds(expires_in, "expires_in") * 1000)
        return await self._ask(post("tokens", name=name, scopes=list(scopes), expires_in_ms=lasts), NewToken)

    async def tokens(self) -> list[TokenInfo]:
        """List all tokens by name, including expired and revoked ones."""
        return (await self._ask(get("tokens"), Listed[TokenInfo])).data

    async def revoke_token(self, ref: str) -> TokenInfo:
        """Revoke a token by its id or name."""
        return await self._ask(delete("tokens", ref), TokenInfo)
