"""Options of the data source, parsed once from the texts that Spark passes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, cast

import msgspec

from headrace.model import conditions
from headrace.model.clock import zoned
from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_filters
from headrace.model.text.sizes import size
from headrace_spark.source.connection import Place, find
from headrace_spark.source.names import READING, check_names

Edge = Literal["earliest", "latest"] | int | datetime
"""The start or end of a range: an end of the stream, a seq, or a time in UTC."""

Edges = Edge | dict[str, Edge]
"""One edge for all streams, or one for each stream, by name. `*` stands for the others."""

OTHERS = "*"
"""The name that stands for all streams without an edge of their own."""

SETTLE_TIMEOUT = 30.0
MAX_TRIGGER_DELAY = 900.0
SAMPLE_ROWS = 1000
MODES = ("permissive", "failfast", "dropmalformed")
_COLUMNS = ("key", "seq", "headers", "created_at", "data", "stream")
_LARGEST_SEQ = 2**63 - 1
_MAX_PARTITIONS = 10_000
_MAX_SAMPLE = 100_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed options of the data source. Durations are in seconds.

    Attributes:
        place: the database, determined on the driver, so that executors need no settings.
        streams: names of streams. It is empty if there is a pattern.
        pattern: a regular expression. All streams whose whole names it matches are read.
        filters: patterns of keys, of which any must match.
        where: a condition on the message as JSON. See `headrace.model.conditions`.
        start: the first message to read.
        end: the last message to read. For a time, the last message before it.
        limit: maximum number of messages of a batch read, the first ones that match. One task reads them.
        partitions: maximum number of tasks that read in parallel. None chooses a number by the size of the range.
        max_connections: maximum number of tasks that hold a connection at the same time. It bounds `partitions`, too.
        max_rows: maximum number of the streams' messages in a micro-batch, before filters.
        max_bytes: maximum stored size of the streams' messages in a micro-batch, in bytes.
        min_rows: number of messages below which a micro-batch waits for more.
        max_trigger_delay: how long it waits at most.
        fail_on_data_loss: whether to raise an error if messages were removed before they were read.
        settle_timeout: how long a batch read waits for publishers in progress.
        consumer: a consumer. Its cursor follows the position of the stream reader.
        data_schema: the fields of the payloads, as DDL, JSON or the path of a Python type. None leaves them as JSON text.
        infer_schema: whether the fields are found in a sample.
        sample_rows: number of messages in the sample.
        mode: what becomes of a payload that does not fit: one of `MODES`.
        corrupt_column: the name of a column that gets the text of such a payload, or None.
        others: options that only a writer has, by their names in lower case.
    """

    place: Place
    streams: tuple[str, ...] = ()
    pattern: str | None = None
    filters: tuple[str, ...] = (">",)
    where: str | None = None
    start: Edges = "earliest"
    end: Edges = "latest"
    limit: int | None = None
    partitions: int | None = None
    max_connections: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_trigger_delay: float = MAX_TRIGGER_DELAY
    fail_on_data_loss: bool = True
    settle_timeout: float = SETTLE_TIMEOUT
    consumer: str | None = None
    data_schema: str | None = None
    infer_schema: bool = False
    sample_rows: int = SAMPLE_ROWS
    mode: str = MODES[0]
    corrupt_column: str | None = None
    others: dict[str, str] = {}

    def tasks(self, wanted: int) -> int:
        """How many tasks read: `partitions`, or else what is wanted, and at most `max_connections`. With a limit it is one."""
        if self.limit is not None:
            return 1
        return min(self.partitions or wanted, self.max_connections or _MAX_PARTITIONS)

    @property
    def database(self) -> str:
        """The URL of the database."""
        return self.place.url

    @property
    def stream(self) -> str:
        """The name of the only stream. Raises `ConfigurationError` if there are several, which a write can't have."""
        if not self.single:
            raise ConfigurationError(
                f"stream={','.join(self.streams)!r} names several streams. Leave it out, and name the stream of each row in a column `stream`."
            )
        return self.streams[0]

    @property
    def single(self) -> bool:
        """Whether exactly one stream is named. Otherwise the messages have a column with the name of their stream."""
        return len(self.streams) == 1

    @staticmethod
    def of(options: Mapping[str, str], known: Iterable[str] = READING, *, named: bool = True) -> Options:
        """Parse the options. Names match in any case, as everywhere in Spark.

        A path passed to `load` or `save` is the name of the stream.

        Args:
            options: the options as Spark passes them.
            known: the names that are allowed. A writer has others than a reader.
            named: whether they must name a stream.

        Raises:
            ConfigurationError: an option does not exist or has an invalid value.
            InvalidInput: a filter or a condition is invalid.
        """
        known = tuple(known)
        given = {name.lower(): value for name, value in options.items()}
        check_names(given, known)
        streams, pattern = _streams(given, named)
        others = {name.lower() for name in known} - {name.lower() for name in READING}
        found = Options(
            place=find(given.get("database")),
            streams=streams,
            pattern=pattern,
            filters=_filters(given.get("filter")),
            where=_where(given.get("where")),
            start=_edges("start", given.get("start", "earliest")),
            end=_edges("end", given.get("end", "latest")),
            limit=_count("limit", given.get("limit"), _LARGEST_SEQ),
            partitions=_count("partitions", given.get("partitions"), _MAX_PARTITIONS),
            max_connections=_count("maxConnections", given.get("maxconnections"), _MAX_PARTITIONS),
            max_rows=_count("maxRows", given.get("maxrows"), _LARGEST_SEQ),
            max_bytes=_size("maxBytes", given.get("maxbytes")),
            min_rows=_count("minRows", given.get("minrows"), _LARGEST_SEQ),
            max_trigger_delay=seconds(given.get("maxtriggerdelay", MAX_TRIGGER_DELAY), "maxTriggerDelay"),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failondataloss", "true")),
            settle_timeout=seconds(given.get("settletimeout", SETTLE_TIMEOUT), "settleTimeout"),
            consumer=given.get("consumer") or None,
            data_schema=given.get("dataschema") or None,
            infer_schema=_flag("inferSchema", given.get("inferschema", "false")),
            sample_rows=_count("sampleRows", given.get("samplerows"), _MAX_SAMPLE) or SAMPLE_ROWS,
            mode=_mode(given.get("mode", MODES[0])),
            corrupt_column=given.get("columnnameofcorruptrecord") or None,
            others={name: value for name, value in given.items() if name in others},
        )
        _check_together(found)
        return found


def _check_together(options: Options) -> None:
    """Raise `ConfigurationError` for options that contradict each other."""
    if options.pattern is not None and options.consumer is not None:
        raise ConfigurationError(
            "consumer and streamPattern can't be combined, since a stream that joins later has no such consumer. Name the streams."
        )
    if options.min_rows is not None and options.max_rows is not None and options.min_rows > options.max_rows:
        raise ConfigurationError(
            f"minRows={options.min_rows} is more than maxRows={options.max_rows}. It must be at most maxRows."
        )
    if options.corrupt_column in _COLUMNS:
        raise ConfigurationError(
            f"columnNameOfCorruptRecord={options.corrupt_column!r} is the name of a column that is there already. Choose another one, such as '_corrupt_record'."
        )
    if options.infer_schema and options.data_schema is not None:
        raise ConfigurationError("inferSchema and dataSchema can't be combined. Leave one of them out.")
    for name, edges in (("start", options.start), ("end", options.end)):
        unread = set(edges) - {*options.streams, OTHERS} if isinstance(edges, dict) and options.streams else ()
        if unread:
            raise ConfigurationError(
                f"{name} names {min(unread)!r}, which is not one of the streams {', '.join(options.streams)}. Correct the name."
            )


def _streams(given: Mapping[str, str], named: bool) -> tuple[tuple[str, ...], str | None]:
    text, pattern = given.get("stream") or given.get("path") or "", given.get("streampattern")
    if pattern:
        if given.get("stream"):
            raise ConfigurationError("stream and streamPattern can't be combined. Leave one of them out.")
        return (), pattern
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if named and not names:
        raise ConfigurationError(
            "The stream is not set. Write .option('stream', 'orders'), or .load('orders'), or write a DataFrame with a column `stream`. In SQL write"
            " create table orders using headrace options (stream 'orders'), and no columns: Spark passes these options on only without them."
        )
    return names, None


def edge_of(edges: Edges, stream: str, default: Edge) -> Edge:
    """The edge of one stream.

    Args:
        default: the edge of a stream that a dictionary does not name.
    """
    return edges.get(stream, edges.get(OTHERS, default)) if isinstance(edges, dict) else edges


def _filters(text: str | None) -> tuple[str, ...]:
    if text is None or not text.strip():
        return (">",)
    if text.lstrip().startswith("["):
        try:
            found = msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f'filter={text!r} is not a list of filters ({error}). Write orders.us.> or ["orders.us.>", "orders.eu.>"].'
            ) from None
    else:
        found = [part.strip() for part in text.split(",")]
    return check_filters(found)


def _where(text: str | None) -> str | None:
    if text is None or not text.strip():
        return None
    return conditions.encode(conditions.parse(text))


def _edges(name: str, text: str) -> Edges:
    if not text.lstrip().startswith("{"):
        return _edge(name, text)
    try:
        found = msgspec.json.decode(text, type=dict[str, str | int])
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f'{name}={text!r:.200} is no JSON object of positions by stream ({error}). Write {{"orders": 17, "payments": "latest", "*": "earliest"}}.'
        ) from None
    return {stream: _edge(name, str(position)) for stream, position in found.items()}


def _edge(name: str, text: str) -> Edge:
    text = text.strip()
    if text in ("earliest", "latest"):
        return cast(Edge, text)
    if re.fullmatch(r"\d+", text):
        if not 1 <= int(text) <= _LARGEST_SEQ:
            raise ConfigurationError(f"{name}={text!r} is not a seq. A seq is from 1 to {_LARGEST_SEQ}.")
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return zoned(found).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{name}={text!r} is not a position in a stream. Write earliest, latest, a seq, or a time such as 2030-01-31T12:00:00Z."
        ) from None


def _count(name: str, text: str | None, maximum: int) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*\d+\s*", text) or not 1 <= int(text) <= maximum:
        raise ConfigurationError(f"{name}={text!r} is invalid. It must be a number from 1 to {maximum}.")
    return int(text)


def _size(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    found = size(text, name)
    if not 1 <= found <= _LARGEST_SEQ:
        raise ConfigurationError(f"{name}={text!r} is invalid. It must be at least 1 byte.")
    return found


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigurationError(f"{name}={text!r} is invalid. It must be true or false.")
    return text.strip().lower() == "true"


def _mode(text: str) -> str:
    if text.strip().lower() not in MODES:
        raise ConfigurationError(f"mode={text!r} is invalid. It must be one of {', '.join(MODES)}.")
    return text.strip().lower()


def check_order(options: Options) -> None:
    """Raise `InvalidInput` if both start and end of a stream are seqs and the start is after the end."""
    for stream in options.streams or (OTHERS,):
        start, end = edge_of(options.start, stream, "earliest"), edge_of(options.end, stream, "latest")
        if isinstance(start, int) and isinstance(end, int) and start > end:
            raise InvalidInput(f"start={start} is after end={end}. The start must not be after the end.")
