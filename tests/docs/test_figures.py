"""The figures of the documentation are those of the stored results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.figures import charts, pages, results, runs

STORED = results.load(results.STORED)
PAGES = list(pages.pages())
MEASURE = re.compile(r"\d ?(?:/s|ms|µs|MiB|MB)\b")


def name(page: Path) -> str:
    return str(page.relative_to(results.ROOT))


def test_the_main_pages_quote_results() -> None:
    assert {"README.md", "docs/figures.md", "docs/performance.md"} <= set(map(name, PAGES))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_the_figures_of_the_stored_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.filled(text, STORED) == text, "Run `python -m benchmarks report --no-run`, which writes the pages."


def test_a_chart_shows_the_stored_results() -> None:
    for path, svg in charts.drawn(STORED):
        assert (results.ROOT / path).read_text(encoding="utf-8") == svg, "Run `python -m benchmarks report --no-run`."


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_quotes_runs_of_benchmarks(page: Path) -> None:
    quoted = pages.quoted(page.read_text(encoding="utf-8"))
    assert {runs.arguments(run)[0] for run in quoted} <= set(runs.ORDER)


@pytest.mark.parametrize("run", STORED)
def test_a_stored_result_is_of_a_plain_run_of_a_commit(run: str) -> None:
    result = STORED[run]
    part = run == "peers" and result["command"].startswith(f"{runs.command(run)} --only ")  # which its page shows
    assert part or result["command"] == runs.command(run)
    assert re.fullmatch(r"[0-9a-f]{7,}", result["commit"])
    assert "transcribed" in result or {"machine", "versions", "server"} <= result.keys()
    assert not result.get("settings", {}).get("quick")


def test_every_stored_result_is_quoted() -> None:
    quoted = {run for page in PAGES for run in pages.quoted(page.read_text(encoding="utf-8"))}
    assert STORED.keys() <= quoted


@pytest.mark.parametrize("page", ["README.md", "docs/figures.md"])
def test_no_measurement_of_a_table_is_written_by_hand(page: str) -> None:
    text = (results.ROOT / page).read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("|") and "<!--" in line]
    assert rows
    by_hand = [cell for row in rows for cell in row[1 if page == "README.md" else 2 :] if is_by_hand(cell)]
    assert by_hand == []


def is_by_hand(cell: str) -> bool:
    """Whether a cell has a number with a unit of measure that is not the figure of a result."""
    return MEASURE.search(pages.without_figures(cell)) is not None


def test_a_measurement_that_is_written_by_hand_is_found() -> None:
    assert is_by_hand("196,000/s")
    assert not is_by_hand("196,000<!-- publish.rate -->/s")
