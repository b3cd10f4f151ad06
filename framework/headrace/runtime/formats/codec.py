"""The protocol of codecs, which change the bytes of a payload before they are stored, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from headrace.model.errors import HeadraceError


class UnreadablePayload(HeadraceError):
    """This process can't read a payload, and another version or configuration of it could.

    The message is delivered again after its backoff, until `max_deliver` attempts have failed.
    """


@runtime_checkable
class Codec(Protocol):
    """Encodes and decodes the payloads of a stream, for example `AesGcm`.

    Codecs are called on the event loop, once for each message, so they must not wait.
    """

    def encode(self, data: bytes, associated: bytes) -> tuple[bytes, Mapping[str, Any]]:
        """Encode a payload.

        Args:
            data: the payload as JSON.
            associated: the stream, the key and the version of the message. A codec that encrypts must
                authenticate it, so that a payload can't be moved to another stream or key.

        Returns:
            The bytes to store, and JSON values that `decode` needs, such as the id of a key. They are
            stored in the message's headers, where everybody can read them.
        """
        ...

    def decode(self, data: bytes, about: Mapping[str, Any], associated: bytes) -> bytes:
        """Decode what `encode` has returned.

        Args:
            data: the bytes.
            about: the JSON values that `encode` returned beside them.
            associated: the same as for `encode`. A codec that encrypts checks it.

        Returns:
            The payload as JSON.

        Raises:
            UnreadablePayload: this process can't decode it, but another configuration could, such as
                one with another key. It is retried.
            Unfit: the bytes were changed. The message becomes a dead letter immediately.
        """
        ...
