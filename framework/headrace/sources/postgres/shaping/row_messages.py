"""The messages of mode `rows`, of which single values are replaced."""

from __future__ import annotations

import msgspec
from msgspec import Raw


class RowMessage(msgspec.Struct):
    """The data of a message. `record` has the JSON of each column. None is a tombstone."""

    record: dict[str, Raw] | None
    metadata: Raw


decode = msgspec.json.Decoder(RowMessage).decode

_encode = msgspec.json.Encoder().encode


def encode(message: RowMessage) -> str:
    """Return the text of a message's data."""
    return _encode(message).decode()
