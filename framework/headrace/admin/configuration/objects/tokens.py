"""Access tokens of a configuration. A file has their names and scopes. A secret exists only when a token is created."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from headrace import store
from headrace.admin.configuration.declared import Desired
from headrace.admin.configuration.fields import duration
from headrace.admin.configuration.steps import Step, alteration, creation
from headrace.model.errors import InvalidInput
from headrace.model.tokens import NewToken, check_lifetime, check_name, mint, parse_all
from headrace.store import Executor


async def step(executor: Executor, desired: Desired, now: datetime | None = None) -> Step | None:
    """The step that makes a token as it is declared, or None.

    Raises:
        InvalidInput: a scope is invalid, or the token has ended, so that its name can't be used again.
    """
    name = check_name(desired.object[0])
    try:
        scopes = parse_all(desired.settings["scopes"])
        lifetime = check_lifetime(desired.settings.get("expires_in"))
    except InvalidInput as error:
        error.field = error.field or "scopes"
        raise
    before = await store.token_named(executor, name)
    if before is None:
        given = {"scopes": list(scopes)} | ({} if lifetime is None else {"expires_in": duration(lifetime)})
        effect = "Its secret is shown once. Once a token exists, servers refuse requests without one."
        return creation("token", (name,), given, lambda connection: _create(connection, name, scopes, lifetime), effect)
    ended = "was revoked" if before.revoked_at else "has expired" if _is_past(before.expires_at, now) else None
    if ended:
        raise InvalidInput(
            f"The token {name!r} {ended}, and its name can't be used again. Declare a token with another name."
        )
    if sorted(before.scopes) == sorted(scopes):
        return None

    async def edit(connection: Executor) -> None:
        await store.edit_token(connection, before.id, scopes)

    found = alteration("token", (name,), {"scopes": (list(before.scopes), list(scopes))}, edit)
    if found is None or set(before.scopes) <= set(scopes):
        return found
    return Step(msgspec.structs.replace(found.change, destructive=True), found.perform)


def _is_past(time: datetime | None, now: datetime | None) -> bool:
    return time is not None and time <= (now or datetime.now(UTC))


async def _create(connection: Executor, name: str, scopes: tuple[str, ...], lifetime: float | None) -> NewToken:
    minted = mint()
    info = await store.add_token(connection, name, minted, scopes, lifetime)
    return NewToken(token=minted.text, **msgspec.structs.asdict(info))
