"""Routes of access tokens: create, list, revoke."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from litestar.params import JSONBody
from msgspec import Meta, Struct
from msgspec.structs import asdict

from headrace import store
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.errors import ConfigurationError, InvalidInput, public_text
from headrace.model.tokens import MOST_SCOPES, NAME, SCOPE, NewToken, TokenInfo, check_lifetime, check_name, parse_all
from headrace.server.access import methods
from headrace.server.errors import invalid
from headrace.server.routes.context import Context
from headrace.server.routes.paging import PAGE_SIZE, NamePage, page
from headrace.server.routes.parameters import with_query
from headrace.server.wire.common import Listed

T = TypeVar("T")
Value = TypeVar("Value")

_MAX_LIFETIME = 100 * 365 * 86_400_000


class TokenRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A token to be created."""

    name: Annotated[
        str,
        Meta(
            description="Name of the token, by which it can be revoked.",
            examples=["ci"],
            extra_json_schema={"pattern": f"^{NAME.pattern}$"},
        ),
    ]
    scopes: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"pattern": SCOPE})]],
        Meta(
            description="Scopes: `publish`, `consume` or `admin`, for all streams or for one.",
            examples=[["publish:mystream", "consume:mystream"]],
            extra_json_schema={"minItems": 1, "maxItems": MOST_SCOPES},
        ),
    ]
    expires_in_ms: Annotated[
        Annotated[int, Meta(ge=1, le=_MAX_LIFETIME)] | None,
        Meta(description="Lifetime in milliseconds. Unlimited by default.", examples=[86_400_000]),
    ] = None

    def checked(self) -> tuple[str, tuple[str, ...], float | None]:
        """Return the name, the scopes, and the seconds until the token expires. Raises a
        `Problem` that names an invalid field."""
        lifetime = None if self.expires_in_ms is None else self.expires_in_ms / 1000
        return (
            _field("name", check_name, self.name),
            _field("scopes", parse_all, self.scopes),
            _field("expires_in_ms", check_lifetime, lifetime),
        )


@methods.create("/tokens", summary="Create a token", tags=["Tokens"])
async def create_token(context: Context, data: JSONBody[TokenRequest]) -> NewToken:
    """Creates a token. Only this answer contains it. Once a token has been created, every
    call needs one. 409 if the name is taken."""
    await context.check_all_streams("admin")
    name, scopes, lifetime = data.checked()
    created = await context.admin.create_token(name, scopes, expires_in=lifetime)
    context.access.changed(created.id)
    return created


@methods.read(
    "/tokens",
    summary="List tokens",
    tags=["Tokens"],
    description=f"Returns tokens by name, without their secrets, including expired and revoked ones. A page ends once its scopes have {PAGE_SIZE}.",
)
@with_query
async def list_tokens(context: Context, asked: NamePage) -> Listed[TokenInfo]:
    await context.check_all_streams("admin")
    tokens = await store.tokens(context.engine.app.database, **asdict(asked), max_bytes=MAX_ANSWER_BYTES)
    return page(tokens, lambda token: token.name, asked)


def _field(field: str, check: Callable[[Value], T], value: Value) -> T:
    try:
        return check(value)
    except (InvalidInput, ConfigurationError) as error:
        raise invalid(public_text(error), field) from error
