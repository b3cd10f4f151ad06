"""Ack ids: what a client that received a message names it by. Opaque, and tamper-evident.

An id holds the consumer, the lease, the seq, the attempt, and how many messages the lease held at first. It is sealed with a key that
all servers of a database share, so that none can be made up or altered. Whether the lease is still held is the store's to say.
"""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64

import msgspec

from headrace.model.errors import InvalidInput

_FIELDS = struct.Struct(">IQQIH")  # 26 bytes; with the seal 36, which is 48 characters of base64
_SEAL = 10
_LENGTH = (_FIELDS.size + _SEAL) // 3 * 4
_MOST_ATTEMPTS, _LARGEST_LEASE = 2**32 - 1, 2**16 - 1


class InvalidAckId(InvalidInput):
    """A text that is no ack id, or has been altered."""


class AckId(msgspec.Struct, frozen=True, gc=False):
    """What an ack id says. `size`: how many messages the lease held at first."""

    consumer: int
    lease: int
    seq: int
    attempt: int
    size: int


class AckIds:
    """Makes ack ids, and reads them.

    Args:
        key: the key that all servers of the database share.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, consumer: int, lease: int, seq: int, attempt: int, size: int) -> str:
        """The ack id of a message."""
        fields = _FIELDS.pack(consumer, lease, seq, min(attempt, _MOST_ATTEMPTS), min(size, _LARGEST_LEASE))
        return urlsafe_b64encode(fields + self._seal(fields)).decode()

    def open(self, ack_id: str) -> AckId:
        """What an ack id says. Raises `InvalidAckId`."""
        if isinstance(ack_id, str) and len(ack_id) == _LENGTH and ack_id.isascii():
            try:
                raw = urlsafe_b64decode(ack_id)
            except (NotBase64, ValueError):
                raw = b""
            fields = raw[: _FIELDS.size]
            # The decoder skips characters that are none of base64's, so the text is compared, too.
            if (
                len(raw) == _FIELDS.size + _SEAL
                and hmac.compare_digest(raw[_FIELDS.size :], self._seal(fields))
                and urlsafe_b64encode(raw).decode() == ack_id
            ):
                return AckId(*_FIELDS.unpack(fields))
        raise InvalidAckId(
            f"{str(ack_id)[:60]!r} is no ack id: give back those that came with the messages, unaltered."
        )

    def _seal(self, fields: bytes) -> bytes:
        return hmac.digest(self._key, fields, "sha256")[:_SEAL]
