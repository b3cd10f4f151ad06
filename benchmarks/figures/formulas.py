"""The formulas of figures.

A formula names a figure of a result by its path, such as `latency.p50_ms`, or calculates with such paths and numbers,
from left to right, such as `costs.publish 100.postgres_us / costs.publish 1.postgres_us`. The first part of a path is a
run, and the others are keys of its JSON. The keys of `variants` can be named without it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any

Results = Mapping[str, Mapping[str, Any]]
"""The results by run."""

_OPERATIONS = {"*": operator.mul, "/": operator.truediv, "+": operator.add}
_OPERATOR = re.compile(r" ([*/+]) ")

MISSING = "–"
"""The text of a figure that was not measured."""


def runs_of(formula: str) -> set[str]:
    """Return the names of the runs that a formula needs."""
    return {operand.partition(".")[0] for operand in _OPERATOR.split(formula)[::2] if not _is_number(operand)}


def text_of(formula: str, results: Results) -> str:
    """Return the text of a figure, or `MISSING` if a result that it needs is not there, or does not have it this time.

    Raises:
        ValueError: results of this kind have no such figure.
    """
    if not runs_of(formula) <= results.keys():
        return MISSING
    first, *others = _OPERATOR.split(formula)
    value = _operand(first, results)
    for sign, operand in zip(others[::2], others[1::2], strict=True):
        further = _operand(operand, results)
        value = None if value is None or further is None else _OPERATIONS[sign](value, further)
    return MISSING if value is None else figure(value)


def figure(value: float) -> str:
    """Return a figure as pages quote it: a whole number as it is, others with three significant digits from 100 on, and with
    two below.
    """
    if isinstance(value, int) or not value:
        return f"{value:,.0f}"
    digits = 3 if abs(value) >= 100 else 2
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def _operand(text: str, results: Results) -> float | None:
    if _is_number(text):
        return float(text)
    run, *path = text.split(".")
    found: Any = results[run]
    for part in path:
        if not isinstance(found, Mapping):  # a part that was left out is null, or a text that says why
            return None
        found = found.get(part, found.get("variants", {}).get(part, MISSING))
    if found == MISSING or isinstance(found, Mapping | list | bool):
        raise ValueError(f"The result of {run} has no figure {'.'.join(path)!r}.")
    return found if isinstance(found, int | float) else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None
