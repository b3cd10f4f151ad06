"""Metrics of a server in Prometheus's text format: requests, their duration, messages, and the
state of consumers.

To count a request takes a look-up and three additions. The text is made on demand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from time import time
from typing import Any

from headrace.model.records import ConsumerInfo

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Bounds of the request histogram in seconds."""

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))

Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
"""The suffix of the family's name, the labels, and the value."""


class RouteHistogram:
    """The requests of one route, method and status."""

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS) + 1)


class RequestMetrics:
    """Counts requests by route, method and status. Routes are templates, so their number is bounded."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int], RouteHistogram] = {}

    def add(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request and its duration in seconds."""
        series = self._series.get((route, method, status))
        if series is None:
            series = self._new(route, method, status)
        series.count += 1
        series.seconds += seconds
        series.buckets[bisect_left(BUCKETS, seconds)] += 1

    def _new(self, route: str, method: str, status: int) -> RouteHistogram:
        return self._series.setdefault((route, method if method in METHODS else "other", status), RouteHistogram())

    @property
    def count(self) -> int:
        """Number of answered requests."""
        return sum(series.count for series in list(self._series.values()))

    def samples(self) -> Iterator[Sample]:
        """Return the samples of a histogram."""
        for (route, method, status), series in list(self._series.items()):
            labels = (("route", route), ("method", method), ("status", str(status)))
            below = 0
            for bound, count in zip((*BUCKETS, float("inf")), series.buckets, strict=True):
                below += count
                yield "_bucket", (*labels, ("le", _number(bound))), below
            yield "_sum", labels, series.seconds
            yield "_count", labels, series.count


class MetricsText:
    """Metric families in order of insertion. Samples of several processes share one head."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[list[str], list[str]]] = {}

    def add(self, name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> None:
        """Add a family. `kind` is counter, gauge or histogram."""
        lines = [f"{name}{suffix}{_labels(labels)} {_number(value)}" for suffix, labels, value in samples]
        self._family(name, [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]).extend(lines)

    def merge(self, text: str, labels: Labels = ()) -> None:
        """Add metrics in text format, with additional labels for each sample."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                if name not in self._families:
                    self._families[name] = ([], [])
                heads, lines = self._families[name]
                if line.split(" ", 2)[1] not in [head.split(" ", 2)[1] for head in heads]:
                    heads.append(line)
            elif line:
                lines.append(_labelled(line, labels) if labels else line)

    def _family(self, name: str, heads: list[str]) -> list[str]:
        return self._families.setdefault(name, (heads, []))[1]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for heads, lines in self._families.values() for line in (*heads, *lines))


def _labelled(line: str, labels: Labels) -> str:
    """Add labels to a sample's line. They come first, since the quoted values behind them may contain anything."""
    text = _labels(labels)[1:-1]
    end = min(place for place in (line.find("{"), line.find(" ")) if place >= 0)
    if line[end] == " ":
        return f"{line[:end]}{{{text}}}{line[end:]}"
    comma = "" if line[end + 1] == "}" else ","
    return f"{line[:end]}{{{text}{comma}{line[end + 1 :]}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


def message_metrics(counts: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Return the metric families of messages, from an engine's statistics."""
    about = {
        "published": "Number of messages that this server published.",
        "received": "Number of messages that clients received.",
        "acked": "Number of messages that clients acked.",
        "nacked": "Number of messages that clients nacked.",
        "stale": "Number of messages that clients settled after their leases were lost.",
        "given_back": "Number of messages that were released because their clients had disconnected.",
    }
    for name, sentence in about.items():
        yield f"headrace_server_messages_{name}_total", "counter", sentence, [("", (), counts[name])]
    waiting = "Number of requests that wait for messages."
    yield "headrace_server_receivers_waiting", "gauge", waiting, [("", (), counts["waiting"])]


def consumer_metrics(consumers: Iterable[ConsumerInfo]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """Return the metric families of consumers' state in the store."""
    found = [((("stream", one.stream), ("consumer", one.name)), one) for one in consumers]
    about = {
        "lag": ("lag_messages", "Number of sequence numbers above the consumer's position."),
        "num_pending": (
            "pending",
            "Number of messages that wait to be leased. The count examines a limited number of messages.",
        ),
        "num_ack_pending": ("in_flight", "Number of leased messages."),
        "parked": ("parked", "Number of messages that wait for a retry or for an earlier message of their key."),
        "blocked": ("blocked", "Number of dead letters that block their keys."),
        "dead_letters": ("dead_letters", "Number of dead letters."),
    }
    for field, (name, sentence) in about.items():
        samples: list[Sample] = [("", labels, getattr(one, field)) for labels, one in found]
        yield f"headrace_consumer_{name}", "gauge", sentence, samples
    ages: list[Sample] = [("", labels, _age(one)) for labels, one in found]
    yield "headrace_consumer_lag_seconds", "gauge", "Age of the oldest message that is not settled, in seconds.", ages


def _age(info: ConsumerInfo) -> float:
    return 0.0 if info.oldest_unacked_at is None else max(0.0, time() - info.oldest_unacked_at.timestamp())
