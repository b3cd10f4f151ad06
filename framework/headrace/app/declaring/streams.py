"""The declaration of streams."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

from headrace.app.declaring.base import arguments, named_arguments
from headrace.app.declaring.consumers import Consumers
from headrace.app.streams.signatures import StreamOptions, TypedStreamOptions
from headrace.app.streams.stream import Stream
from headrace.model.durations import Duration
from headrace.model.errors import ConfigurationError
from headrace.model.specs import Retention, StreamSpec, parsed
from headrace.runtime.formats.codec import Codec
from headrace.runtime.formats.format import StreamFormat, check_codec

T = TypeVar("T")


class Streams(Consumers):
    """Declares streams. Typed ones declare consumers, too."""

    @overload
    def stream(self, name: str, **settings: Unpack[StreamOptions]) -> str: ...
    @overload
    def stream(self, name: str, type: type[T], **settings: Unpack[TypedStreamOptions]) -> Stream[T]: ...
    @overload
    def stream(self, name: str, type: object, **settings: Unpack[TypedStreamOptions]) -> Stream[Any]: ...

    @named_arguments
    def stream(
        self,
        name: str,
        type: Any = None,  # noqa: A002 - as msgspec has it
        *,
        codec: Codec | None = None,
        allow_plain: bool = False,
        retention: Retention = "limits",
        retain_up_to: Duration | None = None,
        retain_at_least: Duration | None = None,
        max_storage: int | None = None,
        one_message_per_key: bool = False,
        dedupe: bool = False,
        tombstones: bool = False,
        dedupe_window: Duration = "2m",
        index_keys: bool = False,
    ) -> Any:
        """Declare a stream and its retention. At start it is created, or its settings are changed to these.

        An existing stream keeps its settings if you declare it by its name alone, or only name it
        in a consumer.

        Args:
            type: the type of the payloads, which makes the stream typed: a class, a union, or `Any`.
            codec: encodes the payloads that this app publishes, and decodes them for its handlers, such
                as `AesGcm`. It needs a type.
            allow_plain: whether handlers also take payloads that the codec has not encoded.
            retention: `limits` applies the limits below. `interest` keeps a message until every
                consumer is done with it, whatever else is set. Without a consumer, nothing is removed.
            retain_up_to: messages older than this are removed.
            retain_at_least: younger messages are kept whatever the stream's size. If that leaves no
                room, publishing is refused (`StreamFull`, in SQL `HR005`) until there is some.
            max_storage: the size on disk above which the oldest messages are removed. In bytes.
            one_message_per_key: a new message replaces the previous one of the same key (compaction).
                It can't be changed after the stream is created.
            dedupe: a payload that equals the latest one of its key is not published, compared by the
                SHA-256 of its JSON, unless that one has a time to live. It needs `one_message_per_key`.
            tombstones: a `null` payload deletes its key, after every consumer has received it. It needs
                `one_message_per_key`.
            dedupe_window: how long message ids are remembered, so that a repeated publish has no
                effect.
            index_keys: an index of keys, so that the messages of a key or of a filter are found without
                searching the stream. Publishing takes longer. A stream with
                `one_message_per_key` always has one.

        Returns:
            The typed stream, or the name of a stream without a type. Raises `ConfigurationError` for
            settings that contradict each other.
        """
        given = arguments(locals())
        for extra in ("type", "codec", "allow_plain"):
            del given[extra]
        spec = StreamSpec(**parsed(StreamSpec, given))
        self._check_open()
        stored_as = None if type is None else _format(spec, type, codec, allow_plain)
        if stored_as is None and (codec is not None or allow_plain):
            raise ConfigurationError(
                f"The stream {name!r} has a codec and no type: pass the type of its payloads, or Any."
            )
        if stored_as is not None:
            self._add_format(stored_as)
        self._streams[name] = None if spec == StreamSpec(name=name) else spec
        return name if stored_as is None else Stream(self, stored_as)


def _format(spec: StreamSpec, type: Any, codec: Codec | None, allow_plain: bool) -> StreamFormat:  # noqa: A002
    """The format of a typed stream. Raises `ConfigurationError`."""
    check_codec(codec, spec.name, allow_plain=allow_plain, dedupe=spec.dedupe)
    return StreamFormat(spec.name, type, codec, allow_plain=allow_plain, tombstones=spec.tombstones)
