"""Encryption of payloads with AES-256-GCM, by the library `cryptography`.

A stored payload is a nonce of 12 random bytes, the ciphertext, and the tag of 16 bytes (NIST SP 800-38D). The
associated data is the stream, the key and the version of the message.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from headrace.model.errors import ConfigurationError
from headrace.model.outcomes import Unfit
from headrace.runtime.formats.codec import UnreadablePayload

ALGORITHM = "A256GCM"
"""The algorithm's name in RFC 7518."""

KEY_BYTES = 32
NONCE_BYTES = 12
MAX_KEY_ID = 100


class AesGcm:
    """Encrypts and decrypts the payloads of a stream with AES-256-GCM.

    A message names the id of its key in its headers. To rotate, add a key to all processes, make it the current one,
    and remove the old one when no message needs it any more. Rotate before a key has encrypted 4 billion (2^32)
    messages, since nonces are random.

    Args:
        keys: keys by their ids. A key is 32 bytes, or their base64, as `AesGcm.new_key()` returns.
        current: the id of the key that encrypts. It can be left out if there is one key.

    Raises:
        ConfigurationError: a key or id can't be used, or `cryptography` is not installed.
    """

    def __init__(self, keys: Mapping[str, bytes | str], *, current: str | None = None) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError("AesGcm needs the extra: pip install 'headrace[encryption]'.") from error
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigurationError("AesGcm takes keys by their ids, such as {'2026-11': AesGcm.new_key()}.")
        self._keys = {_key_id(name): AESGCM(_key(name, key)) for name, key in keys.items()}
        if current is None and len(keys) == 1:
            current = next(iter(keys))
        if current not in self._keys:
            raise ConfigurationError(
                f"current={current!r} must be the id of the key that encrypts, one of {', '.join(map(repr, self._keys))}."
            )
        self._current = current
        self._tampered = InvalidTag

    @staticmethod
    def new_key() -> str:
        """Return a new random key, in base64. Keep it in a secret store."""
        return b64encode(secrets.token_bytes(KEY_BYTES)).decode()

    def __repr__(self) -> str:
        return f"AesGcm({', '.join(map(repr, self._keys))}, current={self._current!r})"

    def encode(self, data: bytes, associated: bytes) -> tuple[bytes, Mapping[str, Any]]:
        """Encrypt with the current key. See `Codec.encode`."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._keys[self._current].encrypt(nonce, data, associated)
        return nonce + sealed, {"alg": ALGORITHM, "kid": self._current}

    def decode(self, data: bytes, about: Mapping[str, Any], associated: bytes) -> bytes:
        """Decrypt. See `Codec.decode`."""
        algorithm, name = about.get("alg"), about.get("kid")
        if algorithm != ALGORITHM:
            raise UnreadablePayload(
                f"The payload is encoded with {algorithm!r:.40}, and this process knows {ALGORITHM!r}."
            )
        key = self._keys.get(name) if isinstance(name, str) else None
        if key is None:
            raise UnreadablePayload(
                f"The payload is encrypted with the key {name!r:.120}, which this process doesn't have: add it to AesGcm(…)."
            )
        try:
            return key.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], associated)
        except (self._tampered, ValueError) as error:  # too short to have a nonce
            raise Unfit(
                f"The payload can't be decrypted with the key {name!r}: it or its stream, key or version was changed, or another key has"
                " this id."
            ) from error


def _key_id(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_KEY_ID:
        raise ConfigurationError(f"The id {name!r:.120} of a key must be text of 1 to {MAX_KEY_ID} characters.")
    return name


def _key(name: str, given: bytes | str) -> bytes:
    try:
        key = b64decode(given, validate=True) if isinstance(given, str) else bytes(given)
    except (TypeError, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"The key {name!r} must be {KEY_BYTES} bytes, or their base64, as AesGcm.new_key() returns."
        ) from None
    return key
