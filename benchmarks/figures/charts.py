"""The charts of the documentation, drawn from the results as its tables are written from them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures.formulas import Results
from benchmarks.peers import chart, results

CHARTS = {
    "docs/peers.svg": ("publish", "drain", "work", "latency"),
    "docs/peers-readme.svg": ("publish", "drain", "work"),
}
"""The jobs of `peers` that a chart shows."""


def drawn(known: Results) -> Iterator[tuple[str, str]]:
    """Yield the path and the SVG of each chart that has a result."""
    if "peers" not in known:
        return
    rows = results.rows(known["peers"]["results"])
    for path, jobs in CHARTS.items():
        yield path, chart.svg([row for row in rows if row.job in jobs], chart.about(known["peers"]))
