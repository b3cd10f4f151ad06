"""Options for the settings of a webhook source, for both `add` and `edit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from headrace.cli.errors import UsageError
from headrace.cli.options.from_settings import (
    VISIBLE,
    Options,
    Special,
    from_settings,
    lines_of,
    nothing,
    option,
    texts,
)
from headrace.sources.webhook import WebhookSpec


def _header_names(given: list[str], _: str) -> tuple[str, ...]:
    return () if nothing(given) else tuple(map(str.lower, given))


@from_settings(
    WebhookSpec,
    secrets=Special("--secret", texts, VISIBLE),
    keep_headers=Special("--keep-header", parse=_header_names),
)
@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Options):
    """The webhook source settings given as options."""

    secret_file: Annotated[
        str | None,
        option(
            "--secret-file",
            "A file with the secret, or several, each on a line. - is standard input.",
            allow_leading_hyphen=True,
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings. Raises `UsageError`, `UnreadableInput`."""
        found = super().given()
        if self.secret_file is not None:
            if "secrets" in found:
                raise UsageError("Give --secret or --secret-file, and not both.")
            found["secrets"] = tuple(lines_of(self.secret_file, "the secret"))
            if not found["secrets"]:
                raise UsageError(f"The file {self.secret_file!r} has no secret in it: write one on a line.")
        if "signature" in found and found["signature"] is None:
            found = {"secrets": (), **found}
        return found
