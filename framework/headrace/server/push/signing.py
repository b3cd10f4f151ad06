"""Signatures, after https://www.standardwebhooks.com: HMAC-SHA256 over the message's id, the time, and the body."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence


class Stamps:
    """The headers by which a receiver knows a request of one consumer, and that nobody else has sent or altered it.

    Args:
        consumer: the consumer's UUID.
        key: what to sign with, or None not to sign.
    """

    def __init__(self, consumer: str, key: bytes | None) -> None:
        self._prefix = f"msg_{consumer.replace('-', '')}_"
        self._key = key

    def id(self, seqs: Sequence[int]) -> str:
        """The same whenever the same messages are sent, so that a receiver knows what he has had."""
        if len(seqs) == 1:
            return f"{self._prefix}{seqs[0]}"
        digest = hashlib.sha256(",".join(map(str, seqs)).encode()).hexdigest()
        return f"{self._prefix}{seqs[0]}_{digest[:16]}"

    def headers(self, identity: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The headers of one request.

        Args:
            identity: from `id`.
            timestamp: seconds since 1970, when it is sent.
        """
        headers = {"webhook-id": identity, "webhook-timestamp": str(timestamp)}
        if self._key is not None:
            signature = hmac.digest(self._key, f"{identity}.{timestamp}.".encode() + body, "sha256")
            headers["webhook-signature"] = "v1," + b64encode(signature).decode()
        return headers
