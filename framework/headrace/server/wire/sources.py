"""Sources, as the wire has them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.model.sources import SourceInfo
from headrace.server.errors import Problem
from headrace.server.wire.common import given
from headrace.sources.templates import DEFAULT
from headrace.sources.webhook import LARGEST_BODY, Signature, WebhookSpec
from headrace.store.info import HIDDEN

PATH = "/api/webhook/{}"
"""Where deliveries of a webhook source go."""


class WebhookSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """A webhook source's settings. What is left out stays as it is; for a new one, its default."""

    key: Annotated[
        str | UnsetType,
        Meta(
            description=f"The template of the messages' keys, by default `{DEFAULT}`.", examples=["{name}.{body.type}"]
        ),
    ] = UNSET
    signature: Annotated[
        Signature | UnsetType | None,
        Meta(description="Who signs deliveries, and how: `standard` is Standard Webhooks."),
    ] = UNSET
    secret: Annotated[
        str | UnsetType | None,
        Meta(description='What deliveries are signed with. Told as "…".', examples=["whsec_AAECAwQF"]),
    ] = UNSET
    secrets: Annotated[
        list[str] | UnsetType,
        Meta(description="Several, while one takes the place of another; then `secret` is left out."),
    ] = UNSET
    keep_headers: Annotated[
        list[str] | UnsetType,
        Meta(description="Request headers that are kept with the message.", examples=[["x-github-event"]]),
    ] = UNSET
    max_body: (
        Annotated[int, Meta(ge=1, le=LARGEST_BODY, description="Bytes; null for as many as the server takes.")]
        | UnsetType
        | None
    ) = UNSET

    def changes(self) -> dict[str, Any]:
        """What was given, as a `WebhookSpec` has it. Raises a `Problem` when secrets are given in both ways."""
        found = {name: value for name, value in given(self).items() if name in WebhookSettings.__struct_fields__}
        if "secret" in found and "secrets" in found:
            raise Problem(
                422, "invalid", "Give one `secret`, or several `secrets`, and not both.",
                validation_errors={"secrets": ["given beside secret"]},
            )  # fmt: skip
        if "secret" in found:
            secret = found.pop("secret")
            found["secrets"] = [] if secret is None else [secret]
        if HIDDEN in found.get("secrets", ()):  # given back as they were told
            del found["secrets"]
        if "keep_headers" in found:
            found["keep_headers"] = [name.lower() for name in found["keep_headers"]]
        return found


class NewSource(WebhookSettings, kw_only=True, forbid_unknown_fields=True):
    """A webhook source to be made."""

    kind: Literal["webhook"] = "webhook"
    name: Annotated[
        str,
        Meta(description="1 to 48 lower-case letters, digits, `-` and `_`: the end of its URL.", examples=["github"]),
    ]
    stream: Annotated[str, Meta(description="Where it delivers to, by id or name.", examples=["mystream"])]

    def spec(self, stream: str) -> WebhookSpec:
        """Its settings, checked, with the stream's name. Raises `ConfigurationError`."""
        return WebhookSpec.stored(self.name, stream, self.changes())


class Source(Struct, kw_only=True):
    """A source."""

    id: str
    name: str
    kind: str
    stream: str
    stream_id: str
    path: Annotated[str, Meta(description="Where deliveries go, by POST.", examples=["/api/webhook/github"])]
    key: str
    signature: str | None
    secret: Annotated[str | None, Meta(description='"…", or null if there is none.')]
    secrets: Annotated[list[str], Meta(description='A "…" for each.')]
    keep_headers: list[str]
    max_body: int | None
    inserted_at: datetime
    updated_at: datetime
    info: Annotated[SourceInfo, Meta(description="All that is known of it.")]

    @classmethod
    def of(cls, info: SourceInfo) -> Source:
        """A source as the store tells it, without its secrets."""
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
