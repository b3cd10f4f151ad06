"""The options of the data source, read once from the texts that Spark hands over."""

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
"""Where a range begins or ends: an end of the stream, a seq, or a time in UTC."""

READING = ("database", "stream", "filter", "where", "start", "end", "partitions", "maxRows", "failOnDataLoss",
           "settleTimeout", "consumer")  # fmt: skip
"""The options of both readers."""

_OF_SPARK = frozenset(("path", "checkpointlocation", "queryname", "mergeschema"))
"""What Spark itself may put among them."""

SETTLE_TIMEOUT = 30.0
_LARGEST_SEQ = 2**63 - 1
_MOST_PARTITIONS = 10_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Durations are in seconds.

    Attributes:
        place: the database, found out on the driver, so that executors need no settings.
        stream: its name.
        filters: of a message's key any must match.
        where: a condition on what it holds, as JSON; see `headrace.model.conditions`.
        start: the first message that is read ...
        end: ... and the last one; of a time, the last one before it.
        partitions: how many tasks read at a time; None for as many as are worth it.
        max_rows: how many seqs a micro-batch spans at most.
        fail_on_data_loss: whether it is an error that messages were removed before they were read.
        settle_timeout: how long a batch read waits for publishers in progress.
        consumer: a consumer whose place follows the stream reader's.
        others: options that only a writer knows, by their names in small letters.
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
        """Read them. Names are taken in any case, as everywhere in Spark; a path given to `load` or `save` is the stream's name.

        Args:
            options: as Spark hands them over.
            known: the names that may be among them; a writer has others than a reader.

        Raises:
            ConfigurationError: there is no such option, or an option can't have that value.
            InvalidInput: a filter or a condition that can't be.
        """
        known = tuple(known)
        given = {name.lower(): value for name, value in options.items()}
        _check_names(given, known)
        if not (stream := given.get("stream") or given.get("path")):
            raise ConfigurationError("Which stream? Say .option('stream', 'orders'), or .load('orders').")
        others = {name.lower() for name in known} - {name.lower() for name in READING}
        return Options(
            place=find(given.get("database")),
            stream=stream,
            filters=_filters(given.get("filter")),
            where=_where(given.get("where")),
            start=_edge("start", given.get("start", "earliest")),
            end=_edge("end", given.get("end", "latest")),
            partitions=_count("partitions", given.get("partitions"), _MOST_PARTITIONS),
            max_rows=_count("maxRows", given.get("maxrows"), _LARGEST_SEQ),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failondataloss", "true")),
            settle_timeout=seconds(given.get("settletimeout", SETTLE_TIMEOUT), "settleTimeout"),
            consumer=given.get("consumer") or None,
            others={name: value for name, value in given.items() if name in others},
        )


def _check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    names = {name.lower(): name for name in known}
    for name in given:
        if name not in names and name not in _OF_SPARK:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            meant = f"; did you mean {names[near[0]]}?" if near else "."
            raise ConfigurationError(
                f"The data source headrace has no option {name!r}{meant} There are {', '.join(known)}."
            )


def _filters(text: str | None) -> tuple[str, ...]:
    if text is None or not text.strip():
        return (">",)
    if text.lstrip().startswith("["):
        try:
            found = msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError as error:
            raise ConfigurationError(
                f'filter={text!r} is not a list of filters ({error}): write orders.us.> or ["orders.us.>", "orders.eu.>"].'
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
            raise ConfigurationError(f"{name}={text!r} can't be: a seq is from 1 to {_LARGEST_SEQ}.")
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{name}={text!r} is no place in a stream: write earliest, latest, a seq, or a time such as 2030-01-31T12:00:00Z."
        ) from None


def _count(name: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*\d+\s*", text) or not 1 <= int(text) <= most:
        raise ConfigurationError(f"{name}={text!r} must be a number from 1 to {most}.")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigurationError(f"{name}={text!r} must be true or false.")
    return text.strip().lower() == "true"


def check_order(options: Options) -> None:
    """Raises `InvalidInput` when both ends are seqs, and the wrong way round."""
    if isinstance(options.start, int) and isinstance(options.end, int) and options.start > options.end:
        raise InvalidInput(
            f"start={options.start} lies after end={options.end}: a range goes from a seq up to a later one."
        )
