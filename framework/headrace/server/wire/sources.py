"""API types of sources."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.model.settings import settings_of
from headrace.model.sources import SourceInfo
from headrace.model.text.names import NAME
from headrace.server.errors import Problem, invalid
from headrace.server.wire.captures import CaptureSettings, PostgresSource
from headrace.server.wire.common import given
from headrace.server.wire.settings import answer, described, request
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.templates import DEFAULT, MAX_TEMPLATE_BYTES
from headrace.sources.webhook import LARGEST_BODY, LONGEST_HEADER_NAME, LONGEST_SECRET, WebhookSpec

PATH = "/api/webhook/{}"
"""Path of a webhook source's deliveries."""

Kind = Literal["webhook", "postgres"]


@request(WebhookSpec, omit=("name", "stream"))
class SourceSettings(CaptureSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings of a source, depending on its kind. When a source is changed, settings that are
    left out stay. A new source gets their defaults."""

    key: Annotated[
        str | UnsetType | None,
        Meta(
            description=f"The template of the messages' keys. For a webhook, by default `{DEFAULT}`. For tables, `null`:"
            f" {settings_of(PostgresSpec)['key'].otherwise}.",
            examples=["{name}.{body.type}"],
            extra_json_schema={"minLength": 1, "maxLength": MAX_TEMPLATE_BYTES},
        ),
    ] = UNSET
    secret: Annotated[
        str | UnsetType | None,
        Meta(
            description="The secret of a webhook's signatures. Answers show it as `…`. In a change, `…` stands for the secrets"
            " that the source has.",
            examples=["whsec_AAECAwQF"],
            extra_json_schema={"minLength": 1, "maxLength": LONGEST_SECRET},
        ),
    ] = UNSET
    secrets: list[Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": LONGEST_SECRET})]] | UnsetType = (
        UNSET
    )
    keep_headers: (
        list[Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": LONGEST_HEADER_NAME})]] | UnsetType
    ) = UNSET
    max_body: Annotated[int, Meta(ge=1, le=LARGEST_BODY)] | UnsetType | None = UNSET

    def changes(self, kind: str) -> dict[str, Any]:
        """Return the settings that were given, as the spec of this kind has them. Raises a
        `Problem` for settings of another kind."""
        found = given(self)
        known = _CAPTURES | {"key"} if kind == "postgres" else _ALL - _CAPTURES
        strangers = (found.keys() & _ALL) - known
        if strangers:
            text = f"A {kind} source has no {min(strangers)!r}: leave it out."
            errors = {name: [f"A {kind} source has none."] for name in sorted(strangers)}
            raise Problem(422, "invalid", text, validation_errors=errors)
        found = {name: value for name, value in found.items() if name in known}
        if kind != "webhook":
            return found
        if found.get("key", "") is None:
            raise invalid("The `key` of a webhook source can't be null.", "key", "null")
        return _secrets(found)


_ALL = frozenset(SourceSettings.__struct_fields__)
_CAPTURES = frozenset(CaptureSettings.__struct_fields__)


def _secrets(found: dict[str, Any]) -> dict[str, Any]:
    """Return a webhook's settings with its secrets as a list. Raises a `Problem` if both
    `secret` and `secrets` are given."""
    if "secret" in found and "secrets" in found:
        raise invalid("Give one `secret`, or several `secrets`, and not both.", "secrets", "given beside secret")
    if "secret" in found:
        secret = found.pop("secret")
        found["secrets"] = [] if secret is None else [secret]
    if "keep_headers" in found:
        found["keep_headers"] = [name.lower() for name in found["keep_headers"]]
    return found


class NewSource(SourceSettings, kw_only=True, forbid_unknown_fields=True):
    """A source to be created."""

    kind: Annotated[Kind, Meta(description="`webhook`: deliveries to the server. `postgres`: captured tables.")] = (
        "webhook"
    )
    name: Annotated[str, described(WebhookSpec, "name", pattern=f"^{NAME.pattern}$")]
    stream: Annotated[str, Meta(description="Where messages go to, by id or name.", examples=["mystream"])]
    into_existing: Annotated[
        bool, Meta(description="Capture tables into a stream that has messages or consumers already, too.")
    ] = False

    def spec(self, stream: str) -> WebhookSpec | PostgresSpec:
        """Return the checked settings with the stream's name. Raises `ConfigurationError`."""
        if self.kind == "webhook":
            return WebhookSpec.stored(self.name, stream, self.changes(self.kind))
        spec = PostgresSpec.stored(self.name, stream, self.changes(self.kind))
        spec.check_where()
        return spec


@answer(WebhookSpec, before="inserted_at", omit=("name", "stream"))
class WebhookSource(Struct, kw_only=True):
    """A webhook source."""

    id: str
    name: str
    kind: str
    stream: str
    stream_id: str
    path: Annotated[str, Meta(description="Where deliveries go, by POST.", examples=["/api/webhook/github"])]
    secret: Annotated[str | None, Meta(description='"…", or null if there is none.')]
    inserted_at: datetime
    updated_at: datetime
    info: Annotated[SourceInfo, Meta(description="All that is known of it.")]

    @classmethod
    def of(cls, info: SourceInfo) -> WebhookSource:
        """Convert a source of the store, without its secrets."""
        settings = WebhookSpec.shown(info.settings)
        return cls(
            id=info.id,
            name=info.name,
            kind=info.kind,
            stream=info.stream,
            stream_id=info.stream_id,
            path=PATH.format(info.name),
            secret=settings["secrets"][0] if settings["secrets"] else None,
            inserted_at=info.created_at,
            updated_at=info.updated_at,
            info=info,
            **settings,
        )


Source = WebhookSource | PostgresSource
"""A source of any kind."""


def source_of(info: SourceInfo) -> Source:
    """Convert a source of the store, without its secrets."""
    return PostgresSource.of(info) if info.kind == "postgres" else WebhookSource.of(info)
