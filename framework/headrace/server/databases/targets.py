"""Which object a request is about, as far as its path says. It decides in which database the request is answered."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from headrace.server.slashes import unmarked

Kind = Literal["stream", "source", "consumer", "schedule"]

_KINDS: dict[str, Kind] = {
    "streams": "stream",
    "sources": "source",
    "webhook": "source",
    "http_pull_consumers": "consumer",
    "http-consumers": "consumer",
    "consumers": "consumer",
    "schedules": "schedule",
}

_NEW = ("sources", "http-consumers", "jobs", "messages")
"""Lists to which a POST adds objects whose body names their streams."""


class Target(NamedTuple):
    """An object that a request names, by its id or name. A consumer or schedule may also be `stream:name`."""

    kind: Kind
    ref: str


class _OfStream(msgspec.Struct):
    """A body, or a message, that names a stream."""

    stream: str | msgspec.UnsetType = msgspec.UNSET
    messages: list[_OfStream] = []


def target_of(path: str) -> Target | None:
    """Return what a request names. None for calls about none or all.

    Args:
        path: the path as `read_path` returns it.
    """
    steps = path.split("/")
    if len(steps) < 4 or steps[1] not in ("v1", "api") or not steps[3]:
        return None
    kind = _KINDS.get(steps[2])
    return None if kind is None else Target(kind, unmarked(steps[3]))


def names_stream(method: str, path: str) -> bool:
    """Return whether the body of a request names its stream."""
    steps = path.split("/")
    return method == "POST" and len(steps) == 3 and steps[1] in ("v1", "api") and steps[2] in _NEW


def stream_in(body: bytes) -> Target | None:
    """Return the stream that a body names first. None if it names none, or can't be decoded, which its route reports."""
    try:
        named = msgspec.json.decode(body, type=_OfStream)
        stream = (named.messages or [named])[0].stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if stream is msgspec.UNSET else Target("stream", stream)
