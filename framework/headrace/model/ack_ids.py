"""Ack ids: opaque, tamper-evident ids by which a client acks the messages that it received.

An id contains the consumer, the lease, the seq, the attempt, and the number of messages that the lease held
at first. It is signed with a key that all servers of a database share, so ids can't be forged or altered.
The store decides whether the lease is still held.
"""

from __future__ import annotations

import hmac
import struct
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import repeat

import msgspec

from headrace.model.errors import InvalidInput

_FIELDS = struct.Struct(">IQQIH")  # 26 bytes, 36 with the signature, or 48 characters of base64
_SEAL = 10
_RAW = _FIELDS.size + _SEAL
_LENGTH = _RAW // 3 * 4
_WRITE = bytes.maketrans(b"+/", b"-_")
_READ = bytes.maketrans(b"-_+/", b"+/!!")  # accepts only the URL-safe alphabet
_MOST_ATTEMPTS, _LARGEST_LEASE = 2**32 - 1, 2**16 - 1


class InvalidAckId(InvalidInput):
    """A text that is not an ack id, or that was altered."""


class AckId(msgspec.Struct, frozen=True, gc=False):
    """The contents of an ack id. `size` is the number of messages that the lease held at first."""

    consumer: int
    lease: int
    seq: int
    attempt: int
    size: int


class AckIds:
    """Makes and reads ack ids.

    Args:
        key: the key that all servers of the database share.
    """

    def __init__(self, key: bytes) -> None:
        # A copy of a hash that has its key takes less time than a new one. It is a keyed hash (RFC 7693), since OpenSSL's
        # HMAC takes longer for so few bytes.
        self._copy = blake2b(digest_size=_SEAL, key=key).copy

    def seal(self, consumer: int, lease: int, seq: int, attempt: int, size: int) -> str:
        """Make the ack id of a message."""
        return self._sealed(
            [_FIELDS.pack(consumer, lease, seq, min(attempt, _MOST_ATTEMPTS), min(size, _LARGEST_LEASE))]
        )[0]

    def seal_all(self, consumer: int, lease: int, seqs: Sequence[int], attempts: Sequence[int]) -> list[str]:
        """Make the ack ids of all messages of a lease. `attempts` is parallel to `seqs`."""
        if max(attempts, default=1) > _MOST_ATTEMPTS:
            attempts = [min(_MOST_ATTEMPTS, attempt) for attempt in attempts]
        size = min(len(seqs), _LARGEST_LEASE)
        return self._sealed(map(_FIELDS.pack, repeat(consumer), repeat(lease), seqs, attempts, repeat(size)))

    def open(self, ack_id: str) -> AckId:
        """Read an ack id. Raises `InvalidAckId`."""
        return self.open_all([ack_id])[0]

    def open_all(self, ack_ids: Sequence[str]) -> list[AckId]:
        """Read ack ids. Raises `InvalidAckId` if one of them is invalid."""
        raw = self._opened(ack_ids)
        if raw is None:
            if len(ack_ids) > 1:
                for one in ack_ids:  # so that the error names it
                    self.open(one)
            raise InvalidAckId(
                f"{str(ack_ids[0])[:60]!r} is not an ack id: send those that came with the messages, unaltered."
            )
        unpack, end = _FIELDS.unpack_from, len(raw)
        return [AckId(*unpack(raw, place)) for place in range(0, end, _RAW)]

    def _seal(self, fields: bytes) -> bytes:
        """The signature of the fields of an id."""
        seal = self._copy()
        seal.update(fields)
        return seal.digest()

    def _sealed(self, fields: Iterable[bytes]) -> list[str]:
        # One base64 call encodes all of them, because each id has a whole number of base64's groups.
        raw = b"".join([one + self._seal(one) for one in fields])
        text = b2a_base64(raw, newline=False).translate(_WRITE).decode()
        return [text[place : place + _LENGTH] for place in range(0, len(text), _LENGTH)]

    def _opened(self, ack_ids: Sequence[str]) -> bytes | None:
        """The bytes of these ids, or None if one of them is invalid."""
        try:
            if any(len(one) != _LENGTH for one in ack_ids):  # the decoder would accept padding
                return None
            raw = a2b_base64("".join(ack_ids).encode().translate(_READ), strict_mode=True)
        except (TypeError, ValueError):
            return None
        size, places = _FIELDS.size, range(0, len(raw), _RAW)
        given = b"".join([raw[place + size : place + _RAW] for place in places])
        right = b"".join([self._seal(raw[place : place + size]) for place in places])
        return raw if hmac.compare_digest(given, right) else None
