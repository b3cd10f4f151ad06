"""Options for where a push consumer sends its messages, for both `consumer add` and `edit`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.cli.errors import UsageError
from headrace.cli.options.from_settings import VISIBLE, Options, Special, from_settings, lines_of, nothing, option
from headrace.cli.options.times import lasting
from headrace.model.push import Push
from headrace.model.text.masking import HIDDEN

_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def _headers(given: list[str], _: str) -> dict[str, str]:
    if nothing(given):
        return {}
    headers: dict[str, str] = {}
    for one in given:
        name, colon, value = one.partition(":")
        name = name.strip()
        if not (colon and name):  # without its value, which may be a password
            raise UsageError("--push-header is NAME:VALUE, such as 'x-team: shop'.")
        if name.lower() in map(str.lower, headers):
            raise UsageError(f"--push-header gives {name!r} twice: give it once.")
        headers[name] = value.strip()
    return headers


def _secret(text: str, _: str) -> str:
    if text == HIDDEN:  # a server would take it to mean: keep the current secret
        raise UsageError("The secret '…' stands for a hidden one. Leave it out to keep that one.")
    return text


def _concurrency(text: str, option: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r} is not a range: write the minimum and the maximum, such as 1-64.")
    return int(found[1]), int(found[2])


@from_settings(
    Push,
    prefix="--push-",
    headers=Special("--push-header", parse=_headers),
    secret=Special(parse=_secret, more=VISIBLE),
    concurrency=Special(parse=_concurrency),
)
@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """The push settings given as options."""

    secret_file: Annotated[
        str | None,
        option(
            "--push-secret-file",
            "A file with the secret, which other users can't see, unlike an option. - is standard input.",
            allow_leading_hyphen=True,
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings. Raises `UsageError`, and `UnreadableInput` for the secret's file."""
        found = super().given()
        if self.secret_file is not None:
            if "secret" in found:
                raise UsageError("Give --push-secret or --push-secret-file, and not both.")
            found["secret"] = _secret_in(self.secret_file)
        return found


def _secret_in(file: str) -> str:
    words = " ".join(lines_of(file, "the secret")).split()
    if len(words) != 1:
        raise UsageError(f"The file {file!r} has {len(words)} words in it, and not one secret.")
    return _secret(words[0], "")


def shown(push: dict[str, Any]) -> str:
    """Format a push consumer's settings for people. It shows whether requests are signed, but no secret
    and no header values.
    """
    batch, (low, high) = push.get("batch"), push.get("concurrency", (1, 64))
    facts = [
        push["url"],
        "batch none" if batch is None else f"batch {batch}",
        f"timeout {lasting(push.get('timeout', 30.0))}",
        f"concurrency {low}-{high}",
        f"signed {'yes' if push.get('secret') else 'no'}",
    ]
    if push.get("shape") == "change":
        facts.append("shape change")
    if push.get("headers"):
        facts.append(f"headers {', '.join(push['headers'])}")
    return ", ".join(facts)
