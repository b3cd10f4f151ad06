"""A benchmark's result, as a table for people and as JSON for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Measured


class Result(msgspec.Struct, kw_only=True):
    """The result of a benchmark.

    Args:
        about: what was measured, in one sentence.
        measured: the rates of the repeats and of the raw limit.
        limit_is: a description of the raw limit.
        settings: the settings of this run.
        checks: what was proven about it.
        unit: of `rate`, `samples` and `limit`.
        latency: `p50_ms`, `p95_ms`, `p99_ms`, `max_ms`.
        variants: results under other conditions, by name.
        details: further results, added to the JSON's top level.
    """

    benchmark: str
    about: str
    measured: Measured
    limit_is: str
    settings: dict[str, Any]
    checks: list[str]
    unit: str = "messages/s"
    latency: dict[str, float] | None = None
    variants: dict[str, dict[str, Any]] = {}
    details: dict[str, Any] = {}

    def flat(self, facts: dict[str, Any]) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "about": self.about,
            "unit": self.unit,
            **figures(self.measured),
            "limit_is": self.limit_is,
            **(self.latency or {}),
            **({"variants": self.variants} if self.variants else {}),
            **self.details,
            "settings": self.settings,
            "checks": self.checks,
            **facts,
        }


def figures(measured: Measured) -> dict[str, Any]:
    return {
        "rate": measured.rate,
        "samples": measured.samples,
        "limit": measured.limit,
        "limit_samples": measured.limit_samples,
        "ratio": measured.ratio,
    }


def write_json(path: Path, flat: list[dict[str, Any]]) -> None:
    """Write one result as an object, several as a list."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(_rounded(flat[0] if len(flat) == 1 else flat))) + b"\n")


def show(console: Console, flat: dict[str, Any]) -> None:
    """Print the table."""
    table = Table(title=f"{flat['benchmark']}: {flat['about']}", title_justify="left", show_header=False, min_width=72)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(flat):
        table.add_row(name, value)
    console.print(table)


def _rows(flat: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("rate", f"{_number(flat['rate'])} {flat['unit']} (median of {_listed(flat['samples'])})"),
        (
            "raw limit",
            f"{_number(flat['limit'])} {flat['unit']}: {flat['limit_is']} ({_listed(flat['limit_samples'])})",
        ),
        ("ratio", f"{flat['ratio']:.2f}"),
    ]
    if "p50_ms" in flat:
        rows.append(("latency", _latency(flat)))
    shown = {"benchmark", "about", "unit", "rate", "samples", "limit", "limit_samples", "ratio", "limit_is", "variants"}
    shown |= {"p50_ms", "p95_ms", "p99_ms", "max_ms", "settings", "checks", "machine", "versions", "server", "when"}
    for name, variant in flat.get("variants", {}).items():
        rows.append((name, _variant(variant)))
    rows.extend((name, _text(value)) for name, value in flat.items() if name not in shown)
    rows.append(("settings", _pairs(flat["settings"])))
    rows.append(("proven", "\n".join(flat["checks"])))
    rows.extend((name, _pairs(flat[name])) for name in ("machine", "versions", "server"))
    return rows


def _variant(variant: dict[str, Any]) -> str:
    parts = []
    if "rate" in variant:
        parts.append(f"{_number(variant['rate'])}/s")
    if "limit" in variant:
        parts.append(f"limit {_number(variant['limit'])}/s, ratio {variant['ratio']:.2f}")
    if "p50_ms" in variant:
        parts.append(_latency(variant))
    known = {"rate", "samples", "limit", "limit_samples", "ratio", "p50_ms", "p95_ms", "p99_ms", "max_ms"}
    known |= {"settings", "checks"}
    parts.extend(f"{name} {_text(value)}" for name, value in variant.items() if name not in known)
    return ", ".join(parts)


def _latency(flat: dict[str, Any]) -> str:
    return ", ".join(f"{name[:-3]} {flat[name]:.2f} ms" for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))


def _listed(samples: list[float]) -> str:
    return " · ".join(_number(sample) for sample in samples)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return "(" + _pairs(value) + ")"
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
