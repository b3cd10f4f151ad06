"""The outcomes as a table for people and as JSON for machines."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.chaos.recovery import WINDOW
from benchmarks.chaos.scenarios import Limits, Outcome

_HEADINGS = ("base/s", "during", "after", "back in", "lost", "twice", "disorder", "again", "refused")

_LEGEND = (
    "base/s: messages handled per second before the fault, of two consumers together. during, after: the rate in the fault"
    " and after the recovery, as a share of that, of the consumer with the lower one. back in: seconds from the end of the"
    " fault until the rate was back. lost: never handled. twice: effects that a transaction had twice. disorder: handled"
    " before an earlier message of the key. again: redelivered to the plain handler, which may happen. refused: acks that"
    " came after their lease had ended."
)


def show(console: Console, outcomes: list[Outcome], limits: Limits) -> None:
    """Print the table."""
    table = Table(title="chaos", title_justify="left", caption=_LEGEND, caption_justify="left")
    table.add_column("scenario", style="bold", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for outcome in outcomes:
        cells = [""] * len(_HEADINGS) if not outcome.recoveries else _cells(outcome)
        table.add_row(outcome.scenario, *cells, _word(outcome, limits))
    console.print(table)


def _word(outcome: Outcome, limits: Limits) -> str:
    if outcome.skipped is not None:
        return "[yellow]SKIPPED[/]"
    return "[bold red]BROKEN[/]" if outcome.faults(limits) else "[green]kept[/]"


def verdict(outcome: Outcome, limits: Limits) -> str:
    """The outcome in a few words, with markup."""
    if outcome.skipped is not None:
        return f"[yellow]SKIPPED[/]: {escape(outcome.skipped)}"
    wrong = outcome.faults(limits)
    return f"[bold red]{escape(', '.join(wrong))}[/]" if wrong else "[green]kept[/]"


def _cells(outcome: Outcome) -> list[str]:
    recoveries, judged = outcome.recoveries.values(), outcome.judgements.values()
    return [
        f"{sum(one.baseline for one in recoveries):.0f}",
        "-" if outcome.fault_seconds < WINDOW else f"{min(one.during_ratio for one in recoveries):.2f}",
        f"{outcome.ratio:.2f}",
        "never" if outcome.back is None else f"{outcome.back:.1f}",
        *(str(sum(getattr(one, count) for one in judged)) for count in ("lost", "doubled", "out_of_order", "repeated")),
        str(outcome.refused),
    ]


def flat(outcome: Outcome, limits: Limits) -> dict[str, Any]:
    """The outcome as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(outcome)
    if outcome.recoveries:
        found |= {"ratio": outcome.ratio, "back": outcome.back}
    return found | {"faults": outcome.faults(limits)}
