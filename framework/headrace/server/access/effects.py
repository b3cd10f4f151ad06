"""The effects of operations: one word each, from which follows which callers may use it.

| effect | the operation | callers |
| --- | --- | --- |
| `read` | changes nothing | all callers with the scope |
| `change` | makes a change, and leaves an entry in the audit log | all callers with the scope. A session or a proxy's user only from the console's own page |
| `publish` | publishes messages, without an entry | as for `change` |
| `deliver` | receives or settles messages, also by `GET` | callers that send a token in `Authorization` |
| `unchecked` | checks its callers itself: signing in and out, and webhooks | everyone |

The routes of the management API have theirs as `effect=…` of their decorator, and the endpoints of the data plane by `@effect`.
One without an effect is refused: a route when the application is made, an endpoint when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, get_args

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from headrace.model.errors import Unauthorized
from headrace.server.access.unauthorized import no_token
from headrace.server.callers import CALLER, Caller

Effect = Literal["read", "change", "publish", "deliver", "unchecked"]

Function = TypeVar("Function", bound=Callable[..., Any])


def effect(word: Effect) -> Callable[[Function], Function]:
    """Mark an endpoint of the data plane with its effect."""

    def marked(function: Function) -> Function:
        function.effect = word  # type: ignore[attr-defined]
        return function

    return marked


def effect_of(function: Callable[..., Any]) -> Effect:
    """Return the effect of an endpoint of the data plane. Raises `AttributeError` if it has none."""
    return function.effect  # type: ignore[attr-defined, no-any-return]


def check_effect(word: Effect, caller: Caller) -> None:
    """Raise `Unauthorized` if a caller may not use operations with an effect."""
    if word == "deliver" and caller.ambient:
        raise Unauthorized(
            "Messages are received and settled with a token only, so that no web page takes them away from consumers. Send the"
            " header `Authorization: Bearer hr_…`."
        )
    if caller.via is None and word != "unchecked":
        raise no_token()


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Check the caller of a route's request. The router has found the route, so no other reading of the path decides this."""
    word: Effect = "read" if connection.scope["method"] == "OPTIONS" else handler.opt["effect"]  # type: ignore[typeddict-item]
    check_effect(word, connection.scope["state"][CALLER])


def check_marks(handlers: Iterable[HTTPRouteHandler]) -> None:
    """Raise `TypeError` if a route has no effect, or a GET request would change something."""
    for handler in handlers:
        word = handler.opt.get("effect")
        allowed = ("read", "deliver") if "GET" in handler.http_methods else get_args(Effect)
        if word not in allowed:
            raise TypeError(f"The route {handler.handler_name!r} has effect={word!r}. Use one of {', '.join(allowed)}.")
