"""The validated settings of webhook sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from headrace.model.errors import ConfigurationError
from headrace.sources import signatures
from headrace.sources.templates import DEFAULT, KeyTemplate

Signature = Literal["standard", "github", "stripe"]

LARGEST_BODY = 100_000_000
MOST_SECRETS = 8
LONGEST_SECRET = 1024
MOST_KEPT_HEADERS = 32

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,128}")


class WebhookSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook source's settings.

    Args:
        name: 1 to 48 lower-case letters, digits, `-` and `_`. It is the last segment of the URL. It
            is also the first token of keys, unless `key` is set.
        stream: the stream to which deliveries are published.
        key: the template of the keys, see `headrace.sources.templates`.
        signature: the signature scheme: `standard` (Standard Webhooks), `github` or `stripe`. With
            None signatures are not checked.
        secrets: the secrets of the signatures. Any of them is accepted, so that you can change a
            secret without losing a delivery.
        keep_headers: request headers to keep with the message, besides `content-type` and
            `content-encoding`.
        max_body: the largest body, in bytes. With None the server's limit applies.

    Raises:
        ConfigurationError: a setting is invalid, or settings contradict each other.
    """

    name: str
    stream: str
    key: str = DEFAULT
    signature: Signature | None = None
    secrets: tuple[str, ...] = ()
    keep_headers: tuple[str, ...] = ()
    max_body: int | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"The source name {self.name[:80]!r} can't be used: take 1 to 48 lower-case letters, digits, '-' and '_', the first"
                " one a letter or digit."
            )
        KeyTemplate(self.key)
        self._check_secrets()
        if len(self.keep_headers) > MOST_KEPT_HEADERS:
            raise ConfigurationError(f"keep_headers of {self._who} names more than {MOST_KEPT_HEADERS} headers.")
        for name in self.keep_headers:
            if not _HEADER_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"keep_headers of {self._who} has {name[:80]!r}, which is no header's name in lower case."
                )
        if self.max_body is not None and not 1 <= self.max_body <= LARGEST_BODY:
            raise ConfigurationError(
                f"max_body={self.max_body} of {self._who} must be from 1 to {LARGEST_BODY:,} bytes."
            )

    def _check_secrets(self) -> None:
        if self.signature is not None and self.signature not in get_args(Signature):
            raise ConfigurationError(
                f"signature={self.signature!r} of {self._who} must be 'standard', 'github' or 'stripe'."
            )
        if self.signature is not None and not self.secrets:
            raise ConfigurationError(f"{self._who} needs the secret that its deliveries are signed with.")
        if self.signature is None and self.secrets:
            raise ConfigurationError(
                f"{self._who} has a secret, but no signature to check with it: say whose, 'standard', 'github' or 'stripe'."
            )
        if len(self.secrets) > MOST_SECRETS:
            raise ConfigurationError(f"{self._who} has more than {MOST_SECRETS} secrets: leave out the oldest.")
        for secret in self.secrets:
            if not 1 <= len(secret) <= LONGEST_SECRET or not secret.isprintable():
                raise ConfigurationError(
                    f"A secret of {self._who} can't be: it has 1 to {LONGEST_SECRET:,} characters, all of them printable."
                )
            if self.signature == "standard":
                signatures.standard_key(secret)

    @property
    def _who(self) -> str:
        return f"The source {self.name!r}"

    def __repr__(self) -> str:
        # Without the secrets, since a repr ends up in logs and tracebacks.
        return (
            f"WebhookSpec(name={self.name!r}, stream={self.stream!r}, key={self.key!r}, signature={self.signature!r})"
        )

    def settings(self) -> dict[str, Any]:
        """Return the settings to store, without name and stream."""
        settings: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        del settings["name"], settings["stream"]
        return settings

    def given(self) -> dict[str, Any]:
        """Return the settings that differ from the default."""
        plain = {field.name: field.default for field in msgspec.structs.fields(self)}
        return {name: value for name, value in self.settings().items() if getattr(self, name) != plain[name]}

    @staticmethod
    def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings but name and stream, with defaults for those that were not stored yet.
        Nothing is checked, since the secrets may be hidden.
        """
        return {**_DEFAULTS, **settings}

    @classmethod
    def stored(cls, name: str, stream: str, settings: Mapping[str, Any]) -> WebhookSpec:
        """Return the spec for stored settings."""
        return msgspec.convert({**settings, "name": name, "stream": stream}, cls)


_DEFAULTS = WebhookSpec(name="any", stream="any").settings()
