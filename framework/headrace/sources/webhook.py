"""The validated settings of webhook sources."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from headrace.model.errors import ConfigurationError
from headrace.model.settings import Setting
from headrace.model.sources import SourceSpec
from headrace.sources import signatures
from headrace.sources.templates import DEFAULT, MAX_TEMPLATE_BYTES, KeyTemplate

Signature = Literal["standard", "github", "stripe"]

LARGEST_BODY = 100_000_000
MOST_SECRETS = 8
LONGEST_SECRET = 1024
MOST_KEPT_HEADERS = 32
LONGEST_HEADER_NAME = 128

_HIDDEN = "…"  # the form of a secret in answers
_HEADER_NAME = re.compile(rf"[!#$%&'*+.^_`|~0-9a-z-]{{1,{LONGEST_HEADER_NAME}}}")


class WebhookSpec(SourceSpec, frozen=True, kw_only=True):
    """The settings of a webhook source.

    Args:
        key: The template of the keys.
        signature: The signature scheme. `standard` is Standard Webhooks.
        secrets: The secrets of the signatures. Any of them is accepted, so that you can change a secret without
            losing a delivery. Answers show each as `…`.
        keep_headers: Request headers to keep with the message, besides `content-type` and `content-encoding`.
        max_body: The largest body.

    Raises:
        ConfigurationError: a setting is invalid, or settings contradict each other.
    """

    key: Annotated[str, Setting(length=(1, MAX_TEMPLATE_BYTES), example="stripe.{body.type}.{body.id}")] = DEFAULT
    signature: Annotated[Signature | None, Setting(otherwise="signatures are not checked")] = None
    secrets: Annotated[
        tuple[str, ...], Setting(length=(0, MOST_SECRETS), otherwise="none", names=("secret", "secrets"))
    ] = ()
    keep_headers: Annotated[
        tuple[str, ...], Setting(length=(0, MOST_KEPT_HEADERS), otherwise="none", example="x-github-event")
    ] = ()
    max_body: Annotated[
        int | None,
        Setting(
            unit="bytes",
            limits=(1, LARGEST_BODY),
            otherwise="the server's limit, and 1 MB without a signature",
            example="1MB",
        ),
    ] = None

    def __post_init__(self) -> None:
        KeyTemplate(self.key)
        self.check()
        self._check_secrets()
        if len(self.keep_headers) > MOST_KEPT_HEADERS:
            raise ConfigurationError(f"keep_headers of {self.owner} names more than {MOST_KEPT_HEADERS} headers.")
        for name in self.keep_headers:
            if not _HEADER_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"keep_headers of {self.owner} has {name[:80]!r}, which is not the name of a header in lower case."
                )

    def _check_secrets(self) -> None:
        if self.signature is not None and not self.secrets:
            raise ConfigurationError(f"The source {self.name!r} needs the secret that its deliveries are signed with.")
        if self.signature is None and self.secrets:
            raise ConfigurationError(
                f"The source {self.name!r} has a secret, but no signature to check with it: set signature to 'standard', 'github' or 'stripe'."
            )
        if len(self.secrets) > MOST_SECRETS:
            raise ConfigurationError(
                f"The source {self.name!r} has more than {MOST_SECRETS} secrets: leave out the oldest."
            )
        for secret in self.secrets:
            if secret == _HIDDEN:
                raise ConfigurationError(
                    f"A secret of {self.owner} is {_HIDDEN!r}, which stands for a hidden one. Write the secret."
                )
            if not 1 <= len(secret) <= LONGEST_SECRET or not secret.isprintable():
                raise ConfigurationError(
                    f"A secret of {self.owner} is invalid: it has 1 to {LONGEST_SECRET:,} characters, all of them printable."
                )
            if self.signature == "standard":
                signatures.standard_key(secret)

    def __repr__(self) -> str:
        # Without the secrets, since a repr ends up in logs and tracebacks.
        return (
            f"WebhookSpec(name={self.name!r}, stream={self.stream!r}, key={self.key!r}, signature={self.signature!r})"
        )
