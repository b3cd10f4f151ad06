"""Ack ids: what a client that received a message names it by. Opaque, and tamper-evident.

An id holds the consumer, the lease, the seq, the attempt, and how many messages the lease held at first. It is sealed with a key that
all servers of a database share, so that none can be made up or altered. Whether the lease is still held is the store's to say.
"""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64encode
from binascii import a2b_base64
from hashlib import blake2b

import msgspec

from headrace.model.errors import InvalidInput

_FIELDS = struct.Struct(">IQQIH")  # 26 bytes; with the seal 36, which are 48 characters of base64
_SEAL = 10
_LENGTH = (_FIELDS.size + _SEAL) // 3 * 4
_READ = bytes.maketrans(b"-_+/", b"+/!!")  # from the alphabet for URLs, and from no other
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
        try:
            raw = a2b_base64(ack_id.encode().translate(_READ), strict_mode=True)
        except (AttributeError, ValueError):
            raw = b""
        fields = raw[: _FIELDS.size]
        # Of the same length, since padding behind it would be read over.
        if raw and len(ack_id) == _LENGTH and hmac.compare_digest(raw[_FIELDS.size :], self._seal(fields)):
            return AckId(*_FIELDS.unpack(fields))
        raise InvalidAckId(
            f"{str(ack_id)[:60]!r} is no ack id: give back those that came with the messages, unaltered."
        )

    def _seal(self, fields: bytes) -> bytes:
        # A keyed hash in one step, RFC 7693; HMAC by OpenSSL takes twice as long for so little.
        return blake2b(fields, digest_size=_SEAL, key=self._key).digest()
