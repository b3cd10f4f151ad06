"""Request signatures as specified by https://www.standardwebhooks.com: HMAC-SHA256 over the
message's id, the time, and the body."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence


class RequestSigner:
    """Makes the headers with which a receiver identifies and authenticates the requests of one
    consumer.

    Args:
        consumer: the consumer's UUID.
        key: the signing key, or None for no signature.
    """

    def __init__(self, consumer: str, key: bytes | None) -> None:
        self._prefix = f"msg_{consumer.replace('-', '')}_"
        self._key = key

    def id(self, seqs: Sequence[int]) -> str:
        """Return an id that is the same whenever the same messages are sent, so that receivers
        can deduplicate them."""
        if len(seqs) == 1:
            return f"{self._prefix}{seqs[0]}"
        digest = hashlib.sha256(",".join(map(str, seqs)).encode()).hexdigest()
        return f"{self._prefix}{seqs[0]}_{digest[:16]}"

    def headers(self, identity: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the headers of one request.

        Args:
            identity: the id from `id`.
            timestamp: the time of the request, in seconds since 1970.
        """
        headers = {"webhook-id": identity, "webhook-timestamp": str(timestamp)}
        if self._key is not None:
            signature = hmac.digest(self._key, f"{identity}.{timestamp}.".encode() + body, "sha256")
            headers["webhook-signature"] = "v1," + b64encode(signature).decode()
        return headers
