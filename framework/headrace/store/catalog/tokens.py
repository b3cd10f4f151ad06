"""Access tokens: create, find and revoke them. A revoked token keeps its row, so that revoking the last one
doesn't open the servers. Only `delete_tokens` does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from headrace.model.errors import InvalidInput
from headrace.model.pages import MAX_LIMIT, Page
from headrace.model.tokens import Minted, StoredToken, TokenExists, TokenInfo, UnknownToken
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of

_FIELDS = ("id", "name", "scopes", "created_at", "expires_at", "revoked_at")
_INFO = ", ".join(_FIELDS)


async def any_token(executor: Executor) -> bool:
    """Whether a token exists, including expired and revoked ones."""
    return bool(await executor.fetchval("select exists (select from headrace_internal.tokens)"))


async def add_token(
    executor: Executor, name: str, minted: Minted, scopes: Iterable[str], lifetime: float | None = None
) -> TokenInfo:
    """Store a new token.

    Args:
        lifetime: seconds until it expires, by the database's clock. None if it never expires.

    Raises:
        TokenExists: the name is taken, perhaps by a revoked token.
    """
    row = await executor.fetchrow(
        f"""insert into headrace_internal.tokens (id, name, digest, scopes, expires_at)
            values ($1, $2, $3, $4, clock_timestamp() + $5::interval) on conflict do nothing returning {_INFO}""",
        minted.id,
        name,
        minted.digest,
        list(scopes),
        None if lifetime is None else timedelta(seconds=lifetime),
    )
    if row is None:
        raise TokenExists(f"The token name {name!r} is taken, by a current or a revoked token. Choose another name.")
    return _info(row)


async def tokens(
    executor: Executor,
    *,
    limit: int = MAX_LIMIT,
    after: str | None = None,
    before: str | None = None,
    max_bytes: int | None = None,
) -> Page[TokenInfo]:
    """Tokens by name, including revoked ones: the first `limit`, or the last ones if `before` is given.

    Args:
        after, before: only those whose name comes after or before this one.
        max_bytes: return no more tokens once the scopes of those found have this size, as text.
    """
    order = 'name collate "C"' + (" desc" if before is not None else "")
    arguments = (limit, after, before, max_bytes)
    rows = await executor.fetch(
        f"""select {_INFO}, scope_list from (
                select {_INFO}, scope_list,
                       sum(octet_length(scope_list)) over (order by {order}) - octet_length(scope_list) as preceding
                from (select {_INFO}, array_to_string(scopes, ' ') as scope_list from headrace_internal.tokens
                      where ($2::text is null or name collate "C" > $2) and ($3::text is null or name collate "C" < $3)
                      order by {order} limit $1) as page) as sized
            where $4::bigint is null or preceding < $4 order by {order}""",
        *arguments,
    )
    return await page_of(
        rows,
        lambda row: _info({name: row[name] for name in _FIELDS}),
        limit=limit,
        max_bytes=max_bytes,
        sized=("scope_list",),
        backwards=before is not None,
    )


async def tokens_of(executor: Executor, ids: Iterable[str]) -> list[StoredToken]:
    """The existing tokens with these ids, with their digests."""
    rows = await executor.fetch(
        f"select {_INFO}, digest from headrace_internal.tokens where id = any($1::text[])", list(ids)
    )
    return [StoredToken(**{**row, "scopes": tuple(row["scopes"])}) for row in rows]


async def revoke_token(executor: Executor, ref: str, now: datetime | None = None) -> TokenInfo:
    """Revoke the token with this id, or else this name. A token that was revoked before keeps its time of revocation.

    Raises:
        UnknownToken.
    """
    row = await executor.fetchrow(
        f"""update headrace_internal.tokens set revoked_at = coalesce(revoked_at, $2, clock_timestamp())
            where id = (select id from headrace_internal.tokens where id = $1 or name = $1 order by id <> $1 limit 1)
            returning {_INFO}""",
        _storable(ref),
        now,
    )
    if row is None:
        raise UnknownToken(f"The token {ref[:80]!r} does not exist. `headrace token ls` lists the tokens.")
    return _info(row)


async def edit_token(executor: Executor, id: str, scopes: Iterable[str]) -> None:  # noqa: A002
    """Replace what a token allows. Raises `UnknownToken`."""
    if not await executor.fetchval(
        "update headrace_internal.tokens set scopes = $2 where id = $1 returning true", id, list(scopes)
    ):
        raise UnknownToken("The token no longer exists.")


async def token_named(executor: Executor, name: str) -> TokenInfo | None:
    """The token with this name, also an expired or a revoked one."""
    row = await executor.fetchrow(f"select {_INFO} from headrace_internal.tokens where name = $1", name)
    return None if row is None else _info(row)


async def delete_tokens(executor: Executor) -> int:
    """Delete all tokens, so that servers need none. Returns their number."""
    return len(await executor.fetch("delete from headrace_internal.tokens returning id"))


def _storable(ref: str) -> str:
    if "\0" in ref:
        raise InvalidInput("The token's id or name contains a NUL character. Leave it out.")
    return ref


def _info(row: Any) -> TokenInfo:
    return TokenInfo(**{**row, "scopes": tuple(row["scopes"])})
