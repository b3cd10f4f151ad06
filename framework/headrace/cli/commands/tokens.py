"""`headrace token add|ls|revoke|open`: the access tokens of the server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer, open_database
from headrace.cli.connection.operator import operator
from headrace.cli.errors import UsageError
from headrace.cli.exit_codes import NOT_DONE
from headrace.cli.options.common import DatabaseOption, JsonOption, YesOption
from headrace.cli.options.times import duration, time_or_dash
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_list
from headrace.cli.output.stderr import confirm, print_notice
from headrace.cli.processes.event_loop import run_async
from headrace.client.address import Server
from headrace.model.text.counting import count
from headrace.model.tokens import TokenInfo

ScopeOption = Annotated[
    list[str],
    Parameter(
        name="--scope",
        negative="",
        help="The allowed actions: publish, consume or admin, for all streams, or for one stream, as in publish:orders."
        " Repeat for several.",
    ),
]


def add(
    name: Annotated[str, Parameter(help="The token's name.")],
    /,
    *,
    scope: ScopeOption,
    expires: Annotated[
        str | None,
        Parameter(show_default=False, help="How long the token is valid, such as 30d. Default: without limit."),
    ] = None,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Create a token and print it.

    It can't be shown again. As soon as one token exists, every request to a
    server on this database needs a token.
    """
    lifetime = None if expires is None else duration(expires, "--expires")
    created = administer(backend, lambda admin: admin.create_token(name, scope, expires_in=lifetime))
    if json:
        print_json(created)
    else:
        print(created.token)
        expiry = "" if created.expires_at is None else f" It expires at {time_or_dash(created.expires_at)}."
        print_notice(f"Save this token. It can't be shown again. Its scopes: {', '.join(created.scopes)}.{expiry}")


def ls(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List all tokens, without their secrets."""
    tokens = administer(backend, lambda admin: admin.tokens())
    now = datetime.now(UTC)
    print_list(
        tokens, json, ("token", "id", "scopes", "created", "expires", "state"),
        lambda t: (t.name, t.id, ", ".join(t.scopes), time_or_dash(t.created_at), time_or_dash(t.expires_at), _state(t, now)),
        empty="There are no tokens, so a server on this database needs none. Create one with `headrace token add`.",
    )  # fmt: skip


def open_servers(*, database: DatabaseOption = None, yes: YesOption = False, json: JsonOption = False) -> int:
    """Delete all tokens, so that servers on this database need none.

    It works on the database only, never through a server. Servers on loopback
    apply it within two seconds. Servers that other machines can reach refuse
    every request until there is a token, unless they run with --insecure.
    """
    target = Backend(database=database).resolve()
    if isinstance(target, Server):
        raise UsageError(f"`headrace token open` needs the database of the server {target.url}. Give --database.")
    deleted = run_async(_open, target, yes)
    if deleted is None:
        return NOT_DONE
    if json:
        print_json({"deleted": deleted})
    else:
        print(f"Deleted {count(deleted, 'token')}. Servers on this database need no token.")
    return 0


async def _open(url: str | None, yes: bool) -> int | None:
    from headrace import store
    from headrace.admin import Admin
    from headrace.admin.tokens import delete_tokens

    async with open_database(url) as database:
        tokens = len(await store.tokens(database))
        if not yes and not await confirm(f"Delete {count(tokens, 'token')} and let requests without a token in?"):
            return None
        return await delete_tokens(Admin(database).acting_as(operator()))


def _state(token: TokenInfo, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {time_or_dash(token.revoked_at)}"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "valid"
