"""The series that OpenTelemetry's SDK keeps of an instrument: one for each set of attributes.

The SDK keeps a series for as long as its provider lives, and counts it towards the instrument's limit, also when what it
is of is gone (`findings/opentelemetry-counts-series-that-are-gone.sh`). Series beyond the limit are folded into one, which
has the attribute `otel.metric.overflow`. No call of the SDK forgets a series, so they are taken from the dictionaries in
which it keeps them. An SDK that keeps them elsewhere, and another implementation of the API, keep them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import ref

from opentelemetry.metrics import MeterProvider

LIMIT_NEAR = 0.8
"""The share of an instrument's limit from which its number of series is near it."""


class Fullest(NamedTuple):
    """The reader of an instrument that is nearest to its limit: how many series it keeps, and the limit."""

    series: int
    limit: int


class KeptSeries:
    """The series of one instrument, for all readers of its provider.

    Args:
        provider: a weak reference to the provider that the instrument belongs to.
        instrument: the instrument.
        synchronous: whether series are recorded while others are forgotten.

    Attributes:
        name: the name of the instrument.
    """

    def __init__(self, provider: ref[MeterProvider], instrument: Any, *, synchronous: bool = False) -> None:
        self.name: str = getattr(instrument, "name", "")
        self._provider = provider
        self._instrument = ref(instrument)
        self._synchronous = synchronous

    def forget(self, is_live: Callable[[Mapping[str, Any]], bool]) -> None:
        """Forget the series with other attributes than those for which `is_live` is true."""
        for match in self._matches():
            # SDKs before 1.45.2 have no limit. They look a series up twice for a record, so it may not vanish in between.
            if self._synchronous and _limit(match) is None:
                continue
            with match._lock:
                series = match._attributes_aggregation
                gone = [key for key, one in series.items() if not is_live(getattr(one, "_attributes", None) or {})]
                for key in gone:
                    del series[key]

    def fullest(self) -> Fullest | None:
        """Return the reader with the largest share of its limit. None if none has a limit."""
        known = [
            Fullest(len(match._attributes_aggregation), limit)
            for match in self._matches()
            if (limit := _limit(match)) is not None
        ]
        return max(known, key=lambda one: one.series / one.limit, default=None)

    def _matches(self) -> Iterator[Any]:
        """Return the SDK's storage of this instrument for each reader. A view that drops attributes has merged the series of
        several objects, which are few."""
        consumer = getattr(self._provider(), "_measurement_consumer", None)
        for reader in list(getattr(consumer, "_reader_storages", {}).values()):
            for match in getattr(reader, "_instrument_view_instrument_matches", {}).get(self._instrument(), ()):
                if (
                    isinstance(getattr(match, "_attributes_aggregation", None), dict)
                    and hasattr(match, "_lock")
                    and getattr(getattr(match, "_view", None), "_attribute_keys", None) is None
                ):
                    yield match


def _limit(match: Any) -> int | None:
    limit: int | None = getattr(match, "_cardinality_limit", None)
    return limit
