"""Routes of callers: which one this is, and the sessions of the console."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, delete, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from headrace.model.errors import InvalidInput
from headrace.server.access import methods
from headrace.server.access.identification import (
    IDENTIFICATION,
    Identification,
    mount_of,
    require_own_page,
    session_cookie,
)
from headrace.server.access.sessions import secret_of
from headrace.server.access.unauthorized import unknown_token
from headrace.server.callers import Identity
from headrace.server.routes.context import AnyRequest, Context


class SignIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body that begins a session."""

    token: Annotated[str, Meta(description="An access token.", examples=["hr_…"], max_length=200)]


class IdentityAnswer(Struct):
    """The caller."""

    data: Identity


@methods.read("/me", summary="Read the caller's identity", tags=["Tokens"])
async def read_me(context: Context) -> IdentityAnswer:
    """Returns the caller's name, its scopes, and how the server identified it: by a token, by a session of the console,
    by a proxy, or not at all (`open`), because no token exists."""
    return IdentityAnswer(context.identity)


@post("/session", effect="unchecked", summary="Sign in to the console", tags=["Tokens"], status_code=200)
async def sign_in(request: AnyRequest, context: Context, data: JSONBody[SignIn]) -> Response[IdentityAnswer]:
    """Begins a session with the scopes of a token, and sets its cookie. It is for browsers: other clients send their
    token with each call. 401 if the token is not valid, 422 while the server needs none."""
    require_own_page(request.scope)  # type: ignore[arg-type]
    identification = _identification(request)
    sessions = identification.sessions
    async with identification.attempts.attempt(request.scope):  # type: ignore[arg-type]
        caller = await context.access.caller(f"Bearer {data.token.strip()}")
    if caller.via == "open":
        raise InvalidInput("No token exists, so the server needs no session. Use it as it is.")
    if (old := secret_of(request.scope["headers"])) is not None:
        await sessions.end(old)
    begun = await sessions.begin(data.token.strip().split("_")[1], mount_of(request.scope))  # type: ignore[arg-type]
    if begun is None:
        raise unknown_token()
    secret, seconds = begun
    cookie = session_cookie(request.scope, secret, seconds)  # type: ignore[arg-type]
    return Response(IdentityAnswer(caller.identity), headers={"set-cookie": cookie})


@delete("/session", effect="unchecked", summary="Sign out of the console", tags=["Tokens"], status_code=204)
async def sign_out(request: AnyRequest) -> Response[None]:
    """Ends the session of the cookie, and deletes the cookie."""
    require_own_page(request.scope)  # type: ignore[arg-type]
    secret = secret_of(request.scope["headers"])
    if secret is not None:
        await _identification(request).sessions.end(secret)
    cookie = session_cookie(request.scope, "", 0)  # type: ignore[arg-type]
    return Response(None, status_code=204, headers={"set-cookie": cookie})


def _identification(request: AnyRequest) -> Identification:
    identification: Identification = request.scope["state"][IDENTIFICATION]
    return identification
