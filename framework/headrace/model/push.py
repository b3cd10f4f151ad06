"""Push consumers: where their messages are sent to, and how."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from headrace.model.errors import ConfigurationError

LONGEST_TIMEOUT = 300.0
LARGEST_BATCH = 1000

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Push(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a push consumer's messages are sent.

    Args:
        url: where they are POSTed to.
        headers: sent along with each request.
        secret: what requests are signed with, as Standard Webhooks have it: `whsec_` and base64; None for no signature.
        timeout: seconds that an answer may take.
        batch: at most so many messages in one request, as a list; None for one message, by itself.
        concurrency: how many requests may be under way at a time in one process, at least and at most.
    """

    url: str
    headers: dict[str, str] = {}
    secret: str | None = None
    timeout: float = 30.0
    batch: int | None = None
    concurrency: tuple[int, int] = (1, 64)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"The push URL {self.url!r} can't be: write http://host/path, or https.")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or "\r" in value or "\n" in value or "\0" in value:
                raise ConfigurationError(f"The header {name!r} of the push URL can't be sent.")
        if not 0.1 <= self.timeout <= LONGEST_TIMEOUT:
            raise ConfigurationError(f"The push timeout {self.timeout:g} must be from 0.1 to {LONGEST_TIMEOUT:g} s.")
        if self.batch is not None and not 1 <= self.batch <= LARGEST_BATCH:
            raise ConfigurationError(f"The push batch {self.batch} must be from 1 to {LARGEST_BATCH:,} messages.")
        low, high = self.concurrency
        if not 1 <= low <= high <= 1000:
            raise ConfigurationError(f"The push concurrency {low} to {high} must be from 1 to 1,000, the least first.")
