"""The figures of a job as bars, in SVG that is legible in light and in dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.peers import results
from benchmarks.peers.comparing import Row
from benchmarks.peers.jobs import JOBS

WIDTH = 760
LABELS = 210
"""Pixels of the names at the left."""
FIGURES = 120
"""Pixels of the figures at the right."""
BAR, STEP = 16, 24
HEAD, BETWEEN = 30, 18

STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #24292f }
    .title { font-weight: 600 }
    .small { font-size: 11px; fill: #57606a }
    .bar { fill: #8c959f }
    .headrace { fill: #0969da }
    .spread { stroke: #24292f; stroke-width: 1.5 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .small { fill: #9198a1 }
      .bar { fill: #656c76 }
      .headrace { fill: #4493f8 }
      .spread { stroke: #e6edf3 }
    }"""


def svg(rows: Sequence[Row], about: str) -> str:
    """A chart with a group of bars for each job.

    Args:
        rows: the results.
        about: the machine and the versions, at the foot.
    """
    parts: list[str] = []
    y = 0
    for job, chosen in results.by_job(rows):
        if measured := [row for row in chosen if row.samples and results.value(row) > 0]:
            parts += _group(job, measured, y)
            y += HEAD + STEP * len(measured) + BETWEEN
    height = y + 8
    parts.append(_text(0, height, about, "small"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -4 {WIDTH} {height + 12}" role="img">\n'
        f"  <title>{escape('; '.join(JOBS[job].title for job, _ in results.by_job(rows)))}</title>\n"
        f"  <style>{STYLE}\n  </style>\n" + "\n".join(f"  {part}" for part in parts) + "\n</svg>\n"
    )


def about(result: Mapping[str, Any]) -> str:
    """The machine and the versions of a result, as a line."""
    machine, server = result["machine"], result["server"]
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {server['version']}, Headrace {result['versions']['headrace']}"
    )


def _group(job: str, rows: Sequence[Row], y: int) -> list[str]:
    paced = JOBS[job].kind == "pace"
    unit = "ms at the median, less is better" if paced else "messages per second"
    parts = [_text(0, y + 14, f"{_sentence(JOBS[job].title)}, {unit}", "title")]
    longest = max(results.high(row) for row in rows)
    scale = (WIDTH - LABELS - FIGURES) / longest
    for place, row in enumerate(rows):
        top = y + HEAD + place * STEP
        middle = top + BAR / 2
        length = results.value(row) * scale
        kind = "headrace" if row.peer == "headrace" else "bar"
        parts.append(_text(0, top + BAR - 3, results.title(row), ""))
        parts.append(f'<rect class="{kind}" x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>')
        if len(row.samples) > 1:
            low, high = LABELS + results.low(row) * scale, LABELS + results.high(row) * scale
            parts.append(f'<line class="spread" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>')
        figure = f"{results.value(row):,.2f}" if paced else f"{results.value(row):,.0f}"
        end = LABELS + max(length, results.high(row) * scale)
        parts.append(_text(round(end) + 6, top + BAR - 3, figure, ""))
    return parts


def _text(x: int, y: int, text: str, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y}">{escape(text)}</text>'


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]
