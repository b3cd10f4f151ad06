"""`headrace token add|ls|revoke`: the access tokens of the server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.options.backend import Backend
from headrace.cli.options.common import JsonOption, print_json
from headrace.cli.options.connection import administer
from headrace.cli.options.times import duration, told
from headrace.cli.output.notices import say
from headrace.cli.output.tables import print_table
from headrace.model.tokens import TokenInfo

ScopeOption = Annotated[
    list[str],
    Parameter(
        name="--scope",
        negative="",
        help="What it opens: publish, consume or admin, for all streams, or for one as in publish:orders. May be given more"
        " than once.",
    ),
]


def add(
    name: Annotated[str, Parameter(help="What it is for; it can be revoked by this name.")],
    /,
    *,
    scope: ScopeOption,
    expires: Annotated[
        str | None, Parameter(show_default=False, help="How long it is good for, such as 30d. Without it: for ever.")
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Create a token and print it.

    It can't be shown again. As soon as one token exists, every call to a server
    on this database needs a token.
    """
    lifetime = None if expires is None else duration(expires, "--expires")
    made = administer(backend, lambda admin: admin.create_token(name, scope, expires_in=lifetime))
    if json:
        print_json(made)
    else:
        print(made.token)
        until = "" if made.expires_at is None else f", until {told(made.expires_at)}"
        say(f"Keep it: it is not shown again. It is for {', '.join(made.scopes)}{until}.")


def ls(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List all tokens, without their secrets."""
    found = administer(backend, lambda admin: admin.tokens())
    if json:
        print_json(found)
    elif not found:
        say("There is no token yet, so a server on this database is open: `headrace token add` makes one.")
    else:
        now = datetime.now(UTC)
        print_table(
            ("token", "id", "scopes", "created", "expires", "state"),
            (
                (t.name, t.id, ", ".join(t.scopes), told(t.created_at), told(t.expires_at), _state(t, now))
                for t in found
            ),
        )


def revoke(
    ref: Annotated[str, Parameter(name="TOKEN", help="The token's name or id.")],
    /,
    *,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Revoke a token permanently.

    Servers apply this within two seconds. The token stays on the list, and its
    name can't be used again.
    """
    revoked = administer(backend, lambda admin: admin.revoke_token(ref))
    if json:
        print_json(revoked)
    else:
        print(f"The token {revoked.name!r} ({revoked.id}) is revoked since {told(revoked.revoked_at)}.")


def _state(token: TokenInfo, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {told(token.revoked_at)}"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "good"
