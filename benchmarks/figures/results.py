"""The results by run, a JSON file each: what the benchmark wrote, with the command and the commit of the code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import write_json

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "benchmarks" / "results"
"""The results that the documentation quotes."""

_CODE = ("framework", "spark", "benchmarks", "requirements.lock", f":(exclude){STORED.relative_to(ROOT)}")
"""The files of the repository on which a result depends. A result stays one of the newest code when others change."""

CHANGED = "+changes"
"""Ends the name of a commit when files were changed since."""


def commit() -> str | None:
    """Return the newest commit that changed the code. It ends with `CHANGED` if the working tree differs. None outside a
    checkout.
    """
    newest = _git("log", "-1", "--format=%h", "--abbrev=12", "--", *_CODE)
    if not newest:
        return None
    return newest + (CHANGED if _git("status", "--porcelain", "--", *_CODE) else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def load(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a directory by run."""
    return {file.stem: json.loads(file.read_bytes()) for file in sorted(directory.glob("*.json"))}


def save(directory: Path, run: str, result: dict[str, Any]) -> None:
    """Write the result of a run. A process that is killed meanwhile leaves the older result."""
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f"{run}.json.part"
    write_json(part, [result])
    part.replace(directory / f"{run}.json")


def missing(runs: Sequence[str], results: Mapping[str, Mapping[str, Any]], at: str | None) -> list[str]:
    """Return the runs that have no result of a commit. No result counts if files were changed since."""
    if at is None or at.endswith(CHANGED):
        return list(runs)
    return [run for run in runs if results.get(run, {}).get("commit") != at]
