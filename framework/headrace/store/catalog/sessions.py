"""Sessions of the console: rows with the digest of a secret and the token with whose scopes it acts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from headrace.store.database.database import Executor

MOST_OF_A_TOKEN = 100
"""The most sessions of one token. A further one ends the oldest."""


class Session(msgspec.Struct, frozen=True):
    """A session that has not expired."""

    token_id: str
    expires_at: datetime


async def begin_session(
    executor: Executor, digest: bytes, token_id: str, mount: str, lifetime: float, most: int = MOST_OF_A_TOKEN
) -> float | None:
    """Store a new session, and delete those that have expired and the oldest ones of the token above `most`.

    Args:
        digest: of its secret.
        mount: the path of the server at which it is valid.
        lifetime: seconds until it expires. It never outlives its token.

    Returns:
        The seconds until it expires. None if the token doesn't exist, is revoked or has expired.
    """
    arguments = (digest, token_id, mount, timedelta(seconds=lifetime), most - 1)
    seconds = await executor.fetchval(
        """with expired as (
               delete from headrace_internal.sessions where expires_at <= clock_timestamp()
                  or digest in (select digest from headrace_internal.sessions where token_id = $2
                                order by created_at desc offset $5)
           )
           insert into headrace_internal.sessions (digest, token_id, mount, created_at, expires_at)
           select $1, id, $3, clock_timestamp(), least(expires_at, clock_timestamp() + $4::interval)
           from headrace_internal.tokens
           where id = $2 and revoked_at is null and (expires_at is null or expires_at > clock_timestamp())
           returning extract(epoch from expires_at - created_at)::float8""",
        *arguments,
    )
    return None if seconds is None else float(seconds)


async def sessions(executor: Executor, wanted: Sequence[tuple[bytes, str]]) -> dict[tuple[bytes, str], Session]:
    """The sessions with these digests that are valid at these mount points, and whose tokens still are."""
    rows = await executor.fetch(
        """select s.digest, s.mount, s.token_id, s.expires_at
           from unnest($1::bytea[], $2::text[]) as w (digest, mount)
           join headrace_internal.sessions as s on s.digest = w.digest and s.mount = w.mount
           join headrace_internal.tokens as t on t.id = s.token_id
           where s.expires_at > clock_timestamp() and t.revoked_at is null""",
        [digest for digest, _ in wanted],
        [mount for _, mount in wanted],
    )
    return {(row["digest"], row["mount"]): Session(row["token_id"], row["expires_at"]) for row in rows}


async def session(executor: Executor, digest: bytes, mount: str) -> Session | None:
    """The session with this digest, see `sessions`."""
    return (await sessions(executor, [(digest, mount)])).get((digest, mount))


async def end_session(executor: Executor, digest: bytes) -> bool:
    """Delete a session. Returns whether there was one."""
    return bool(
        await executor.fetchval("delete from headrace_internal.sessions where digest = $1 returning true", digest)
    )
