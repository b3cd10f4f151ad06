"""All metrics: the instruments that the code makes of OpenTelemetry, and the families of the server's `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from docsite.reference.markdown import plain, table
from headrace.telemetry.metering import Metering
from headrace.telemetry.observables import Observables

Row = tuple[str, str, str, str]
"""Name, kind, unit and description of a metric."""


class _Meter:
    """A meter that notes which instruments are made."""

    def __init__(self) -> None:
        self.made: list[Row] = []

    def __getattr__(self, create: str) -> Any:
        kind = (
            create.removeprefix("create_").removeprefix("observable_").replace("_", " ").replace("up down", "up-down")
        )

        def note(name: str, *arguments: Any, unit: str = "", description: str = "", **_: Any) -> Any:
            texts = [one for one in arguments if isinstance(one, str)]
            unit, description = texts or (unit, description)
            self.made.append((f"`{name}`", kind, f"`{unit}`", plain(description)))
            return self

        return note


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            "# All metrics\n",
            "## OpenTelemetry\n",
            "How to turn them on, and their attributes, is in [telemetry](../telemetry.md#metrics).\n",
            table(("metric", "kind", "unit", "description"), instruments()),
            "## The server's `/metrics`\n",
            "In Prometheus's text format. Their labels are in [the server](../server.md#health).\n",
            table(("metric", "kind", "description"), families()),
        ]
    )


def instruments() -> list[Row]:
    """Return all instruments of OpenTelemetry, by name."""
    meter: Any = _Meter()
    Metering(meter)
    Observables(meter, meter)
    return sorted(meter.made)


def families() -> list[tuple[str, str, str]]:
    """Return the name, the kind and the description of all families of `/metrics`."""
    return [(f"`{name}`", kind, plain(about)) for name, kind, about in _families()]


def _families() -> Iterator[tuple[str, str, str]]:
    from headrace import App
    from headrace.server.asgi import Server
    from headrace.server.monitoring.prometheus import consumer_metrics
    from headrace.server.monitoring.source_metrics import backfill_metrics, capture_metrics

    own = Server(App("postgresql://localhost/not-connected")).monitoring.own()
    yield from _heads(own)
    # A family of sources is left out where there is none of them.
    capture = SimpleNamespace(state="stopped", facts=None, captured=0, failures=0)
    source: Any = SimpleNamespace(name="", stream="", capture=capture)
    backfill: Any = SimpleNamespace(source="", table="", read=0, total=None)
    for name, kind, about, _ in (*consumer_metrics([]), *capture_metrics([source]), *backfill_metrics([backfill])):
        yield name, kind, about


def _heads(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the families of a text in Prometheus's format."""
    about = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            about = line.split(" ", 3)[3]
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            yield name, kind, about
