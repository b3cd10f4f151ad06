"""Options of the data source, parsed once from the texts that Spark passes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, cast

import msgspec

from headrace.model import conditions
from headrace.model.durations import seconds
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.keys import check_filters
from headrace_spark.source.connection import Place, find

Edge = Literal["earliest", "latest"] | int | datetime
"""The start or end of a range: an end of the stream, a seq, or a time in UTC."""

READING = ("database", "stream", "filter", "where", "start", "end", "partitions", "maxRows", "failOnDataLoss",
           "settleTimeout", "consumer")  # fmt: skip
"""The options of both readers."""

_SPARK_OPTIONS = frozenset(("path", "checkpointlocation", "queryname", "mergeschema"))
"""Options that Spark itself may add. They are ignored."""

SETTLE_TIMEOUT = 30.0
_LARGEST_SEQ = 2**63 - 1
_MAX_PARTITIONS = 10_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed options of the data source. Durations are in seconds.

    Attributes:
        place: the database, determined on the driver, so that executors need no settings.
        stream: the name of the stream.
        filters: patterns of keys, of which any must match.
        where: a condition on the message as JSON. See `headrace.model.conditions`.
        start: the first message to read.
        end: the last message to read. For a time, the last message before it.
        partitions: how many tasks read in parallel. None chooses a number by the size of the range.
        max_rows: maximum number of the stream's messages in a micro-batch, before filters.
        fail_on_data_loss: whether to raise an error if messages were removed before they were read.
        settle_timeout: how long a batch read waits for publishers in progress.
        consumer: a consumer. Its cursor follows the position of the stream reader.
        others: options that only a writer has, by their names in lower case.
    """

    place: Place
    stream: str
    filters: tuple[str, ...] = (">",)
    where: str | None = None
    start: Edge = "earliest"
    end: Edge = "latest"
    partitions: int | None = None
    max_rows: int | None = None
    fail_on_data_loss: bool = True
    settle_timeout: float = SETTLE_TIMEOUT
    consumer: str | None = None
    others: dict[str, str] = {}

    @property
    def database(self) -> str:
        """The URL of the database."""
        return self.place.url

    @staticmethod
    def of(options: Mapping[str, str], known: Iterable[str] = READING) -> Options:
        """Parse the options. Names match in any case, as everywhere in Spark.

        A path passed to `load` or `save` is the name of the stream.

        Args:
            options: the options as Spark passes them.
            known: the names that are allowed. A writer has others than a reader.

        Raises:
            ConfigurationError: an option does not exist or has an invalid value.
            InvalidInput: a filter or a condition is invalid.
        """
        known = tuple(known)
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given, known)
        if not (stream := given.get("stream") or given.get("path")):
            raise ConfigurationError("The stream is not set. Write .option('stream', 'orders'), or .load('orders').")
        others = {name.lower() for name in known} - {name.lower() for name in READING}
        return Options(
            place=find(given.get("database")),
            stream=stream,
            filters=_filters(given.get("filter")),
            where=_where(given.get("where")),
            start=_edge("start", given.get("start", "earliest")),
            end=_edge("end", given.get("end", "latest")),
            partitions=_count("partitions", given.get("partitions"), _MAX_PARTITIONS),
            max_rows=_count("maxRows", given.get("maxrows"), _LARGEST_SEQ),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failondataloss", "true")),
            settle_timeout=seconds(given.get("settletimeout", SETTLE_TIMEOUT), "settleTimeout"),
            consumer=given.get("consumer") or None,
            others={name: value for name, value in given.items() if name in others},
        )


def _check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    names = {name.lower(): name for name in known}
    for name in given:
        if name not in names and name not in _SPARK_OPTIONS:
            matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            suggestion = f" Did you mean {names[matches[0]]}?" if matches else ""
            raise ConfigurationError(
                f"The data source headrace has no option {name!r}.{suggestion} The options are {', '.join(known)}."
            )


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


def _edge(name: str, text: str) -> Edge:
    text = text.strip()
    if text in ("earliest", "latest"):
        return cast(Edge, text)
    if re.fullmatch(r"\d+", text):
        if not 1 <= int(text) <= _LARGEST_SEQ:
            raise ConfigurationError(f"{name}={text!r} is no seq. A seq is from 1 to {_LARGEST_SEQ}.")
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{name}={text!r} is no position in a stream. Write earliest, latest, a seq, or a time such as 2030-01-31T12:00:00Z."
        ) from None


def _count(name: str, text: str | None, maximum: int) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*\d+\s*", text) or not 1 <= int(text) <= maximum:
        raise ConfigurationError(f"{name}={text!r} is invalid. It must be a number from 1 to {maximum}.")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigurationError(f"{name}={text!r} is invalid. It must be true or false.")
    return text.strip().lower() == "true"


def check_order(options: Options) -> None:
    """Raise `InvalidInput` if both start and end are seqs and the start is after the end."""
    if isinstance(options.start, int) and isinstance(options.end, int) and options.start > options.end:
        raise InvalidInput(f"start={options.start} is after end={options.end}. The start must not be after the end.")
