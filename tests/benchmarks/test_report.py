"""`python -m benchmarks report` measures what pages quote, once for each commit, and fills in the pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import command, formulas, pages, results, runs
from benchmarks.report import write_json

RESULT: dict[str, Any] = {
    "rate": 196_123.4,
    "limit": 217_000.0,
    "p50_ms": 0.8912,
    "share": 0.0041,
    "none": None,
    "left_out": "no browser is installed",
    "variants": {"1 trace in 100": {"rate": 98_000.0}, "behind, 2": {"count": 4}},
}
CONDITIONS: dict[str, Any] = {
    "machine": {"cores": 2, "cpu": "Xeon", "memory_gib": 23.5, "system": "Linux 6.1", "load_before": 0.01},
    "server": {"version": "PostgreSQL 18.4", "synchronous_commit": "on", "data_checksums": "on"},
    "versions": {"python": "3.11.9"},
}
QUOTING = """# A page
<!-- figures: wal -->

| old |

<!-- end of figures -->
`publish` has 1<!-- publish.rate -->/s, `drain` 2,345.6<!-- drain.rate -->/s.
"""


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("a.rate", "196,000"),
        ("a.p50_ms", "0.89"),
        ("a.rate / a.limit", "0.90"),
        ("a.share * 100", "0.41"),
        ("1000000 / a.rate", "5.1"),
        ("a.1 trace in 100.rate", "98,000"),
        ("a.behind, 2.count", "4"),
        ("a.none", "–"),
        ("a.left_out.shown_ms / 1000", "–"),
        ("b.rate", "–"),
        ("a.rate / b.rate", "–"),
    ],
)
def test_a_formula_gives_a_figure_or_a_dash(formula: str, text: str) -> None:
    assert formulas.text_of(formula, {"a": RESULT}) == text


@pytest.mark.parametrize("formula", ["a.speed", "a.variants", "a.1 trace in 100"])
def test_a_formula_that_names_no_figure_is_an_error(formula: str) -> None:
    with pytest.raises(ValueError, match="The result of a has no figure"):
        formulas.text_of(formula, {"a": RESULT})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (12, "12"),
        (1_131_234, "1,131,234"),
        (1_131_234.0, "1,130,000"),
        (99.6, "100"),
        (9.96, "10"),
        (1.25, "1.2"),
        (12.4, "12"),
        (0.0641, "0.064"),
        (367.4, "367"),
    ],
)
def test_a_figure_has_two_significant_digits_and_three_from_a_hundred_on(value: float, text: str) -> None:
    assert formulas.figure(value) == text


def test_stored_results_keep_small_and_large_figures(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", [{"share": 0.00412345678, "rate": 196_123.456789}])
    assert json.loads((tmp_path / "result.json").read_text()) == {"share": 0.00412346, "rate": 196_123}


def test_a_page_is_filled_from_its_results_and_again_with_the_same() -> None:
    written = {"wal_bytes": 386.7, "commits": 0.03, "dead_rows": 0.02}
    known = {"publish": RESULT, "wal": {"variants": {"in hundreds": written}}}
    page = pages.filled(QUOTING, known)
    assert "`publish` has 196,000<!-- publish.rate -->/s, `drain` –<!-- drain.rate -->/s." in page
    assert "| in hundreds | 387 | 0.030 | 0.020 |\n\n<!-- end of figures -->" in page
    assert "old" not in page
    assert pages.filled(page, known) == page
    assert pages.quoted(page) == {"wal", "publish", "drain"}


def measured(commit: str, cores: int) -> dict[str, Any]:
    return {**CONDITIONS, "commit": commit, "machine": {**CONDITIONS["machine"], "cores": cores}, "rate": 1}


def test_a_page_says_of_which_commit_and_machine_its_figures_are() -> None:
    page = "<!-- figures: measured -->\n<!-- end of figures -->\n1<!-- a.rate --> 1<!-- b.rate --> 1<!-- c.rate -->"
    same = {run: measured("abc1234", 2) for run in "abc"}
    assert "The figures on this page were measured at commit `abc1234` on 2 cores (Xeon," in pages.filled(page, same)
    filled = pages.filled(page, same | {"b": measured("abc1234", 8)})
    assert "not all of one commit and one machine" in filled
    assert "- `a`, `c`: at commit `abc1234` on 2 cores" in filled
    assert "- `b`: at commit `abc1234` on 8 cores" in filled


def test_runs_with_a_result_of_this_commit_are_not_repeated() -> None:
    stored = {"publish": {"commit": "abc"}, "drain": {"commit": "older"}}
    wanted = ["publish", "drain", "wal"]
    assert results.missing(wanted, stored, "abc") == ["drain", "wal"]
    assert results.missing(wanted, stored, "abc" + results.CHANGED) == wanted
    assert results.missing(wanted, stored, None) == wanted


class Runs:
    """Measures nothing, and counts the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, commit: str) -> None:
        self.measured: list[str] = []
        monkeypatch.setattr(results, "commit", lambda: commit)
        monkeypatch.setattr(runs, "measure", self.measure)

    def measure(self, run: str, options: list[str], timeout: float) -> dict[str, Any]:
        self.measured.append(run)
        if run == "lease":
            raise runs.RunFailed("lease failed with status 1.")
        return {"rate": 1_000.0, "limit": 2_000.0, "ratio": 0.5, **CONDITIONS}


def test_an_interrupted_report_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Runs(monkeypatch, "abc1234")
    places = ["--results", str(tmp_path / "results"), "--pages", str(tmp_path / "pages")]
    assert command.main(["--only", "publish", *places, "--", "--quick"]) == 0
    assert command.main(["--only", "publish,lease,push", *places, "--", "--quick"]) == 1  # lease fails
    assert seen.measured == ["publish", "lease", "push"]
    stored = results.load(tmp_path / "results")
    assert stored.keys() == {"publish", "push"}
    assert stored["publish"]["command"] == "python -m benchmarks publish --quick"
    assert stored["publish"]["commit"] == "abc1234"


def test_the_pages_of_the_documentation_have_no_results_with_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "publish", "--", "--quick"])
    assert "Name another directory with --results." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--no-run", "--results", str(tmp_path)])
    assert "Name a directory for the pages with --pages" in capsys.readouterr().err


def test_report_measures_in_a_process_of_its_own_and_writes_pages(tmp_path: Path) -> None:
    places = ["--results", str(tmp_path / "results"), "--pages", str(tmp_path / "pages")]
    options = ["--", "--messages", "1500", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "report", "--only", "publish", *places, *options],
        cwd=results.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = results.load(tmp_path / "results").values()
    assert result["settings"]["messages"] == 1500
    assert result["command"] == "python -m benchmarks publish --messages 1500 --repeats 1"
    page = (tmp_path / "pages" / "README.md").read_text(encoding="utf-8")
    assert f"| {formulas.figure(result['rate'])}<!-- publish.rate -->/s |" in page
    assert "–<!-- drain.rate -->/s" in page


def test_a_run_that_takes_too_long_is_ended_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(runs.RunFailed, match=r"publish was not done after 0\.5 s"):
        runs.measure("publish", ["--messages", "1500"], 0.5)
