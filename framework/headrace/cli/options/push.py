"""Options for where a push consumer sends its messages, for both `consumer add` and `edit`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headrace.cli.options.times import NO_VALUE, duration, lasting
from headrace.cli.problems import NoInput, UsageProblem

_STDIN = "-"
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def _option(name: str, help: str, **more: Any) -> Parameter:  # noqa: A002 - as Parameter has it
    return Parameter(name=name, help=help, negative="", show_default=False, **more)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """The push settings given as options."""

    push_url: Annotated[
        str | None,
        _option("--push-url", "Have servers POST the messages there: a push consumer, as http:// or https://."),
    ] = None
    push_header: Annotated[
        list[str] | None,
        _option(
            "--push-header", "A header to send along, as NAME:VALUE; may be given several times, and none sends none."
        ),
    ] = None
    push_secret: Annotated[
        str | None,
        _option(
            "--push-secret",
            "What requests are signed with, whsec_ and base64, which other users may see while this runs; none for no signature.",
        ),
    ] = None
    push_secret_file: Annotated[
        str | None,
        _option("--push-secret-file", "A file with that secret; - is standard input.", allow_leading_hyphen=True),
    ] = None
    push_timeout: Annotated[
        str | None, _option("--push-timeout", "How long a request and its answer may take; by default 30s, at most 5m.")
    ] = None
    push_batch: Annotated[
        str | None,
        _option("--push-batch", "Messages in one request at most, up to 1000; none for one by itself, the default."),
    ] = None
    push_concurrency: Annotated[
        str | None,
        _option(
            "--push-concurrency", "Requests at a time in one server process, at least and at most; by default 1-64."
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The given settings, with the names and types of `Push`.

        Raises `UsageProblem`, and `NoInput` for the secret's file.
        """
        found: dict[str, Any] = {}
        if self.push_url is not None:
            found["url"] = self.push_url
        if self.push_header is not None:
            found["headers"] = _headers(self.push_header)
        if self.push_secret is not None and self.push_secret_file is not None:
            raise UsageProblem("Give --push-secret or --push-secret-file, and not both.")
        if self.push_secret_file is not None:
            found["secret"] = _secret_in(self.push_secret_file)
        elif self.push_secret is not None:
            found["secret"] = None if self.push_secret.lower() in NO_VALUE else _secret(self.push_secret)
        if self.push_timeout is not None:
            found["timeout"] = duration(self.push_timeout, "--push-timeout")
        if self.push_batch is not None:
            found["batch"] = _batch(self.push_batch)
        if self.push_concurrency is not None:
            found["concurrency"] = _concurrency(self.push_concurrency)
        return found


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
    if push.get("headers"):
        facts.append(f"headers {', '.join(push['headers'])}")
    return ", ".join(facts)


def _headers(given: list[str]) -> dict[str, str]:
    if len(given) == 1 and given[0].lower() in NO_VALUE:
        return {}
    found: dict[str, str] = {}
    for one in given:
        name, colon, value = one.partition(":")
        name = name.strip()
        if not (colon and name):  # without its value, which may be a password
            raise UsageProblem("--push-header is NAME:VALUE, such as 'x-team: shop'.")
        if name.lower() in map(str.lower, found):
            raise UsageProblem(f"--push-header gives {name!r} twice: give it once.")
        found[name] = value.strip()
    return found


def _secret_in(file: str) -> str:
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoInput(f"The file {file!r} with the secret can't be read: {error}.") from error
    words = text.split()
    if len(words) != 1:
        raise UsageProblem(f"The file {file!r} has {len(words)} words in it, and not one secret.")
    return _secret(words[0])


def _secret(text: str) -> str:
    if text == "…":  # a server would take it to mean: keep the current secret
        raise UsageProblem("The secret '…' stands for one that isn't told: leave it out to keep that one.")
    return text


def _batch(text: str) -> int | None:
    if text.lower() in NO_VALUE:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageProblem(f"--push-batch {text!r} is not a number of messages.")
    return int(text)


def _concurrency(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UsageProblem(f"--push-concurrency {text!r} is no range: write the least and the most, such as 1-64.")
    return int(found[1]), int(found[2])
