"""The format of one stream: how its payloads are stored, and read again."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_origin, is_typeddict

import msgspec

from headrace.model.conditions import Condition
from headrace.model.conditions.paths import root
from headrace.model.conditions.tree import children
from headrace.model.errors import ConfigurationError, InvalidData
from headrace.model.keys import check_key
from headrace.model.messages import payloads
from headrace.model.messages.payloads import CODEC_HEADER, VERSION_HEADER
from headrace.model.outcomes import Reject, Unfit
from headrace.model.specs import ConsumerSpec
from headrace.model.text.error_text import text_of
from headrace.runtime.formats.codec import Codec, UnreadablePayload
from headrace.runtime.formats.upcasting import MAX_VERSION, Upcasters
from headrace.runtime.handlers.handler import Decode, decoder_of
from headrace.runtime.messages.message import Message

_MARK = '"headrace-'
_PATH = re.compile(r" - at `[^`]*`$")


class StreamFormat:
    """How the payloads of one stream are stored.

    Args:
        stream: its name.
        payload: the type of the payloads, or `Any`.
        codec: encodes payloads before they are stored, or None.
        allow_plain: whether a stream with a codec may have messages that were not encoded.
        tombstones: whether `null` deletes a key, so that it is stored as it is.

    Attributes:
        upcasters: the upcasters from older versions.
        type, codec, allow_plain: as given.
    """

    def __init__(self, stream: str, payload: Any, codec: Codec | None, *, allow_plain: bool, tombstones: bool) -> None:
        self.stream = stream
        self.type = payload
        self.codec = codec
        self.upcasters = Upcasters(stream)
        self.allow_plain = allow_plain
        self._tombstones = tombstones
        self._classes = _classes(payload)
        self._decode = self.guarded(decoder_of(payload, f"The stream {stream!r} carries"))

    @property
    def plain(self) -> bool:
        """Whether it is only a type: neither encoded nor with older versions."""
        return self.codec is None and self.upcasters.version == 1

    # --- publishing

    def outgoing(self, key: str, data: Any, headers: Mapping[str, Any] | None) -> tuple[Any, Mapping[str, Any] | None]:
        """Return the data and the headers that are stored for a message. Raises `InvalidData`."""
        tombstone = data is None and self._tombstones
        if self._classes is not None and not tombstone and not isinstance(data, self._classes):
            raise InvalidData(
                f"The stream {self.stream!r} carries {_name(self.type)}, not {_name(data.__class__)}: publish a value of that type,"
                " or JSON as msgspec.Raw."
            )
        if not isinstance(headers or {}, Mapping):  # refused when they are encoded
            return data, headers
        headers = _without_ours(headers)
        if self.plain or tombstone:
            return data, headers
        version = self.upcasters.version
        added: dict[str, Any] = {VERSION_HEADER: version} if version > 1 else {}
        if self.codec is not None:
            text = payloads.encode(data).encode()
            stored, added[CODEC_HEADER] = self.codec.encode(text, self._associated(key, version))
            data = b64encode(stored).decode()
        return data, {**(headers or {}), **added}

    def check(self, data: Any) -> None:
        """Raise if data, given as plain values of JSON, are none of the stream's type: `msgspec.ValidationError`, or
        what the type's own code raises."""
        if not (data is None and self._tombstones):
            self._decode(payloads.encode(data))

    def outgoing_many(self, messages: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Do the same for tuples of `publish_many`. A value that is not such a tuple is yielded unchanged, or raises
        `InvalidData` if its text must not be quoted."""
        for message in messages:
            if isinstance(message, (tuple, list)) and 2 <= len(message) <= 3:
                key, data, *headers = message
                yield key, *self.outgoing(key, data, headers[0] if headers else None)
            elif self.codec is None:
                yield message
            else:  # the general error would quote it, in logs and dead letters
                raise InvalidData(
                    f"Messages for {self.stream!r} must be (key, data) or (key, data, headers) tuples, not {_name(message.__class__)}."
                )

    def _associated(self, key: str, version: int) -> bytes:
        check_key(key)
        return msgspec.json.encode(["headrace", self.stream, key, version])

    # --- reading

    def open(self, message: Message) -> None:
        """Bring the payload of a delivered message to its present form, once. Raises as `read` does.

        The headers lose what described the stored form, so that a handler can publish them with other data.
        """
        if message._payload is not msgspec.UNSET:
            return
        message.raw = self.read(message.key, message.raw, message.raw_headers)
        if message.raw_headers is not None and _MARK in message.raw_headers:
            message.raw_headers = payloads.encode_headers(_without_ours(msgspec.json.decode(message.raw_headers)))

    def read(self, key: str, raw: str, raw_headers: str | None) -> str:
        """Return the JSON of the present version of a stored payload.

        Raises:
            UnreadablePayload: this process doesn't know the version, the codec or the key.
            Unfit: the payload can never be read.
            Errors of upcasters are raised unchanged.
        """
        headers = msgspec.json.decode(raw_headers) if raw_headers is not None and _MARK in raw_headers else {}
        version, about = self._version(headers.get(VERSION_HEADER, 1)), headers.get(CODEC_HEADER)
        if about is None and self._tombstones and raw == "null":
            return raw
        if about is not None or self.codec is not None:
            raw = self._decoded(key, raw, about, version)
        if version < self.upcasters.version and raw != "null":
            raw = payloads.encode(self.upcasters.apply(msgspec.json.decode(raw), version))
        return raw

    def decoded(self, key: str, data: Any, headers: Mapping[str, Any] | None) -> Any:
        """Decode the data of a stored message into the type. Raises as `read` does, or `msgspec.ValidationError`."""
        text = self.read(key, payloads.encode(data), payloads.encode_headers(headers))
        return self._decode(text)

    def _version(self, version: Any) -> int:
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= MAX_VERSION:
            raise Unfit(f"The header {VERSION_HEADER!r} must be a number from 1, not {version!r:.40}.")
        if version > self.upcasters.version:
            raise UnreadablePayload(
                f"The message has version {version}, and this process knows the versions of {self.stream!r} up to"
                f" {self.upcasters.version}: deploy the code of version {version} here, or wait for it."
            )
        return version

    def _decoded(self, key: str, raw: str, about: Any, version: int) -> str:
        if self.codec is None:
            raise UnreadablePayload(
                f"The payload is encoded ({about!r:.80}), and this process declares {self.stream!r} without a codec: pass codec=…."
            )
        if about is None:
            if self.allow_plain:
                return raw
            raise Unfit(
                f"The payload is not encoded, and {self.stream!r} has a codec: publish with an app that declares it, or pass"
                " allow_plain=True for older messages."
            )
        try:
            stored = b64decode(msgspec.json.decode(raw, type=str), validate=True)
        except ValueError as error:  # msgspec's errors are, too
            raise Unfit("The payload is said to be encoded, and is not base64 in a JSON string.") from error
        if not isinstance(about, Mapping):
            raise Unfit(f"The header {CODEC_HEADER!r} is not what a codec has written.")
        return self.codec.decode(stored, about, self._associated(key, version)).decode()

    def guarded(self, decode: Decode) -> Decode:
        """Return a decoder whose errors don't quote payloads that are encoded in the store."""
        if self.codec is None:
            return decode

        def guarded(text: str) -> Any:
            try:
                return decode(text)
            except Reject:
                raise
            except Exception as error:
                place = _PATH.search(text_of(error))
                hidden = msgspec.ValidationError(
                    f"{type(error).__name__}, without its text, since payloads of {self.stream!r} are encoded{place.group() if place else ''}"
                )
            raise hidden  # out here it doesn't have the other error as its context, which hooks and reporters of errors print

        return guarded


def _without_ours(headers: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The headers without those of a format, which may be of another message that was received."""
    if not headers or not (VERSION_HEADER in headers or CODEC_HEADER in headers):
        return headers
    return {name: value for name, value in headers.items() if name not in (VERSION_HEADER, CODEC_HEADER)}


def sealed(raw_headers: str | None) -> bool:
    """Whether the headers of a message say that a codec has encoded its payload."""
    return raw_headers is not None and f'"{CODEC_HEADER}"' in raw_headers


def _classes(carried: Any) -> tuple[type, ...] | None:
    """The classes of which published data must be, or None if instances can't tell."""
    if carried is Any or not isinstance(carried, type) or get_origin(carried) is not None or is_typeddict(carried):
        return None
    return (carried, msgspec.Raw, *((int,) if carried is float else ()))


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def check_conditions(stored_as: StreamFormat, spec: ConsumerSpec) -> None:
    """Raise `ConfigurationError` if a consumer's condition looks at data that is encoded in the store."""
    if stored_as.codec is not None and spec.where is not None and "data" in _roots(spec.where):
        raise ConfigurationError(
            f"Consumer {spec.name!r}: the database can't look into the payloads of {spec.stream!r}, which are encoded by a codec. Let"
            " where=… look at the key or the headers, which are not."
        )


def check_capture(stored_as: StreamFormat, source: str) -> None:
    """Raise `ConfigurationError` if handlers would refuse what a source captures into the stream."""
    if stored_as.codec is not None and not stored_as.allow_plain:
        raise ConfigurationError(
            f"The source {source!r} captures into {stored_as.stream!r}, whose payloads are encoded, and captured rows are not: pass"
            " allow_plain=True, or capture into another stream."
        )


def _roots(condition: Condition) -> set[str]:
    """The roots of the fields that a condition names, such as "data" and "key"."""
    field = getattr(condition, "field", None)
    own = set() if field is None else {root(field)}
    return own.union(*map(_roots, children(condition)))


def check_codec(codec: Any, stream: str, *, allow_plain: bool, dedupe: bool) -> None:
    """Check a stream's codec. Raises `ConfigurationError`."""
    if codec is None:
        if allow_plain:
            raise ConfigurationError(
                f"The stream {stream!r} has allow_plain=True and no codec: leave it out, or pass codec=…."
            )
        return
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise ConfigurationError(
            f"codec={codec!r:.80} of the stream {stream!r} must have the methods encode and decode, such as AesGcm(…)."
        )
    if dedupe:
        raise ConfigurationError(
            f"The stream {stream!r} has dedupe=True and a codec, which makes equal payloads different: leave one of them out."
        )
