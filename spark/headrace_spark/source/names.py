"""Names of the data source's options, and what a wrong name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from headrace.model.errors import ConfigurationError

PLACES = ("database", "stream")
"""The options of all readers and writers."""

_SELECTING = (
    "streamPattern",
    "filter",
    "where",
    "start",
    "end",
    "limit",
    "consumer",
    "failOnDataLoss",
    "settleTimeout",
)
_DIVIDING = ("partitions", "maxConnections", "maxRows", "maxBytes", "minRows", "maxTriggerDelay")
_DECODING = ("dataSchema", "inferSchema", "sampleRows", "mode", "columnNameOfCorruptRecord")

READING = (*PLACES, *_SELECTING, *_DIVIDING, *_DECODING)
"""The options of both readers."""

_SPARK = frozenset(("path", "checkpointlocation", "queryname", "mergeschema"))
"""Options that Spark itself may add. They are ignored."""

_KAFKA = {
    "subscribe": "stream",
    "assign": "stream",
    "topic": "stream",
    "subscribepattern": "streamPattern",
    "startingoffsets": "start",
    "startingtimestamp": "start",
    "startingoffsetsbytimestamp": "start",
    "endingoffsets": "end",
    "endingtimestamp": "end",
    "endingoffsetsbytimestamp": "end",
    "maxoffsetspertrigger": "maxRows",
    "minoffsetspertrigger": "minRows",
    "minpartitions": "partitions",
    "kafka.bootstrap.servers": "database",
    "kafka.group.id": "consumer",
    "groupidprefix": "consumer",
}
"""The options of Spark's Kafka source, in lower case, and those that do the same here."""


def check_names(given: Iterable[str], known: tuple[str, ...]) -> None:
    """Check the names of options, which are in lower case.

    Raises:
        ConfigurationError: there is no such option. The message names the one that was probably meant.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        if name not in names and name not in _SPARK:
            raise ConfigurationError(
                f"The data source headrace has no option {name!r}.{_suggestion(name, names)} The options are {', '.join(known)}."
            )


def _suggestion(name: str, names: dict[str, str]) -> str:
    if (ours := _KAFKA.get(name)) is not None and ours.lower() in names:
        return f" The option of the Kafka source of that name is {ours} here."
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" Did you mean {names[matches[0]]}?" if matches else ""
