"""Push consumers: where their messages are sent, and how."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from copy import copy
from ipaddress import IPv6Address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import force_setattr

from headrace.model.errors import ConfigurationError
from headrace.model.settings import Setting
from headrace.model.settings import check as check_settings
from headrace.model.text.masking import masked_push

LONGEST_TIMEOUT = 300.0
MOST_CONCURRENCY = 1000
LONGEST_URL = 2_000
LONGEST_HOST, LONGEST_LABEL = 253, 63
MOST_HEADERS = 50
LONGEST_HEADER = 8_000
SECRET = "whsec_"

Shape = Literal["message", "change"]

SMALLEST_KEY, LARGEST_KEY = 24, 64
"""The minimum and maximum size of a signing key in bytes, as Standard Webhooks defines them."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII | re.IGNORECASE)

RESERVED = frozenset(
    ("webhook-id", "webhook-timestamp", "webhook-signature", "host", "content-length", "transfer-encoding", "connection",
     "keep-alive", "upgrade", "expect", "te", "trailer")
)  # fmt: skip
"""Headers that the user can't set. Receivers trust some of them, and others determine where a request ends."""


class Push(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a push consumer's messages are sent.

    Args:
        url: The URL to which messages are POSTed, with `http` or `https`. Put a user or a password into a
            header instead. Answers show its path only to `admin`.
        headers: Headers of each request. Those of the signature, and those that determine where a request ends,
            can't be set. Answers show their values only to `admin`.
        secret: The key that signs requests as in Standard Webhooks: `whsec_` and 24 to 64 random bytes in
            base64. Answers show it as `…`.
        timeout: The time from the start of a request within which the response must arrive.
        batch: The maximum number of messages in a request, which are sent as `{"data": […]}`.
        concurrency: The minimum and maximum number of requests in flight in a server process. The governor
            chooses in between.
        shape: The form of a message in a request. `message` is as `receive` returns it. `change` has the parts of
            a captured change or row at the top, as pull consumers by name return it, and any other message is as
            with `message`. A consumer that is created under `/api` has `change` by default.
    """

    url: Annotated[str, Setting(length=(1, LONGEST_URL), example="https://example.com/hook")]
    headers: Annotated[dict[str, str], Setting(length=(0, MOST_HEADERS), otherwise="none", example="x-team:shop")] = {}
    secret: Annotated[
        str | None, Setting(length=(1, len(SECRET) + 4 * -(-LARGEST_KEY // 3)), otherwise="no signature")
    ] = None
    timeout: Annotated[
        float, Setting(unit="seconds", limits=(0.1, LONGEST_TIMEOUT), example="10s", names=("timeout_ms",))
    ] = 30.0
    batch: Annotated[
        int | None,
        Setting(unit="messages", limits=(1, 1000), otherwise="one message per request", names=("batch_size",)),
    ] = None
    concurrency: Annotated[tuple[int, int], Setting(otherwise="1 to 64", example="2-8")] = (1, 64)
    shape: Annotated[Shape, Setting()] = "message"

    def __post_init__(self) -> None:
        self.check()

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> Push:
        """Return settings that were stored, perhaps by an earlier version with other rules. Only their types are
        checked, so that invalid ones can be read and changed. Call `check` before you send to them.

        Raises `msgspec.ValidationError`.
        """
        read = msgspec.convert(settings, _Unchecked)
        found = copy(_PLAIN)  # a copy is made without the checks
        for name in cls.__struct_fields__:
            force_setattr(found, name, getattr(read, name))
        return found

    def check(self) -> None:
        """Raise `ConfigurationError` for invalid settings."""
        _check_url(self.url)
        _check_headers(self.headers)
        if self.secret is not None:
            _key(self.secret)
        check_settings(self, "`push`")
        low, high = self.concurrency
        if not 1 <= low <= high <= MOST_CONCURRENCY:
            raise ConfigurationError(
                f"`concurrency` of `push` must be from 1 to {MOST_CONCURRENCY:,}, the minimum first, not {low} to {high}."
            )

    def __repr__(self) -> str:
        """Masks the credentials, since this text may be logged."""
        shown = masked_push({name: getattr(self, name) for name in self.__struct_fields__})
        return f"Push({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def key(self) -> bytes | None:
        """The signing key as bytes, or None for no signature."""
        return None if self.secret is None else _key(self.secret)


class _Unchecked(Push, frozen=True, kw_only=True):
    """The settings without the checks."""

    def __post_init__(self) -> None:
        pass


def _check_url(url: str) -> None:
    if len(url) > LONGEST_URL:
        raise ConfigurationError(f"The push URL has {len(url):,} characters, and may have {LONGEST_URL:,}.")
    try:
        parts = urlsplit(url)
        reachable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that don't match, or an invalid port
        reachable = None
    if not reachable or " " in url or "\\" in url or not url.isprintable():
        raise ConfigurationError(  # does not contain the URL, since its path may be a secret
            "The push URL is invalid. Write http://host/path, or https, without spaces, backslashes and control characters."
        )
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(
            "The push URL has a user or a password in it, where everybody would see them: put them into a header,"
            ' such as {"authorization": "Basic …"}.'
        )
    if not _is_host(parts.hostname or "", parts.netloc):
        raise ConfigurationError(
            f"The host {parts.hostname!r} of the push URL is invalid. Write a name of at most {LONGEST_HOST} characters, with"
            f" labels of at most {LONGEST_LABEL}, or an IP address without a zone."
        )


def _is_host(host: str, authority: str) -> bool:
    """Whether it is a host name, which may be internationalized, or an IP address."""
    try:
        if "[" in authority:
            return bool(_BRACKETED.fullmatch(authority) and IPv6Address(host))
        labels = host.encode("idna").decode().removesuffix(".").split(".")
    except ValueError:  # an invalid address, or a label that IDNA can't encode
        return False
    return sum(map(len, labels)) + len(labels) - 1 <= LONGEST_HOST and all(map(_LABEL.fullmatch, labels))


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > MOST_HEADERS:
        raise ConfigurationError(f"The push URL has {len(headers)} headers, and may have {MOST_HEADERS}.")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or _UNPRINTABLE.search(value):
            raise ConfigurationError(
                f"The header {name!r} of the push URL can't be sent: names are letters, digits and '-', and values have no line breaks."
            )
        if len(name) + len(value) > LONGEST_HEADER:
            raise ConfigurationError(
                f"The header {name!r} of the push URL is longer than {LONGEST_HEADER:,} characters."
            )
        if name.lower() in RESERVED:
            raise ConfigurationError(
                f"The header {name!r} of the push URL is set by the server itself: leave it out, or call yours otherwise."
            )


def _key(secret: str) -> bytes:
    try:
        key = b64decode(secret.removeprefix(SECRET), validate=True) if secret.startswith(SECRET) else b""
    except (NotBase64, ValueError):
        key = b""
    if not SMALLEST_KEY <= len(key) <= LARGEST_KEY:
        raise ConfigurationError(  # does not contain the secret
            f"The push secret can't be used: write {SECRET!r} and then {SMALLEST_KEY} to {LARGEST_KEY} random bytes in base64."
        )
    return key


_PLAIN = Push(url="https://example.com/hook")
