"""The API under `/api`, for clients of the years when all of it was there. They send back fields of answers, and take 200 for
the only success.

Under `/v1` a field that a request doesn't have is refused, and what is created is answered with 201.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct

from headrace.server.wire.consumer_answers import Consumer, HttpConsumer
from headrace.server.wire.consumers import NewConsumer
from headrace.server.wire.streams import NewStream, Stream

PREFIX = "/api/"


def _echoes(answer: type[Struct], request: type[Struct]) -> frozenset[str]:
    """Return the fields that an object's answer has and a request to create or change it has not."""
    return frozenset(answer.__struct_encode_fields__) - frozenset(request.__struct_encode_fields__)


_ECHOES = {
    re.compile(r"/api/streams(/[^/]+)?"): _echoes(Stream, NewStream),
    re.compile(r"/api/streams/[^/]+/consumers(/[^/]+)?"): _echoes(Consumer, NewConsumer),
    re.compile(r"/api/http-consumers"): _echoes(HttpConsumer, NewConsumer) - {"stream"},  # it names its stream
    re.compile(r"/api/http-consumers/[^/]+"): _echoes(HttpConsumer, NewConsumer),
}
"""What requests may send back, by the paths of their objects."""

_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def without_echoes(path: str, body: bytes) -> bytes:
    """Return the body of a request for an object without the fields that only answers have. A body that is no JSON object is
    left as it is, to be refused with what is wrong with it."""
    for paths, echoes in _ECHOES.items():
        if body and paths.fullmatch(path):
            try:
                fields = _decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return body
            kept = {name: value for name, value in fields.items() if name not in echoes}
            # An answer has null for a condition that no filters express. The condition is in `where`, too.
            if bytes(kept.get("filters", b"")) == b"null":
                del kept["filters"]
            return body if len(kept) == len(fields) else msgspec.json.encode(kept)
    return body


def status_of(path: str, status: int) -> int:
    """Return the status of an answer as the clients of a path know it."""
    return 200 if status == 201 and path.startswith(PREFIX) else status
