"""Type checkers find each wrong use of a typed stream in `uses.py`, and nothing else there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("uses.py")
WRONG = [number for number, line in enumerate(USES.read_text().splitlines(), 1) if line.endswith("# error")]
PYRIGHT = next(filter(None, map(shutil.which, ("pyright", "basedpyright"))), None)


def lines_of_decorators(found: set[int]) -> set[int]:
    """The found lines. An error of a decorated function is one of the line of its decorator."""
    lines = USES.read_text().splitlines()
    return {n - 1 if re.match(r"(async )?def ", lines[n - 1]) else n for n in found}


@pytest.mark.process
@pytest.mark.long
def test_mypy_finds_the_wrong_uses(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api", reason="mypy is not installed: pip install mypy")
    out, problem, _ = mypy.run(["--strict", "--config-file", str(ROOT / "pyproject.toml"), str(USES)])
    found = {int(number) for number in re.findall(r"uses\.py:(\d+): error", out)}
    assert lines_of_decorators(found) == set(WRONG), out + problem
    assert "framework/" not in out


@pytest.mark.process
@pytest.mark.skipif(
    PYRIGHT is None, reason="NOT CHECKED by pyright, which is not on the path: pip install basedpyright"
)
def test_pyright_finds_the_wrong_uses(tmp_path: Path) -> None:
    config = {
        "include": [str(USES)],
        "extraPaths": [str(ROOT / "framework")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [PYRIGHT or "", "--outputjson", "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    errors = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    found = {one["range"]["start"]["line"] + 1 for one in errors}
    assert lines_of_decorators(found) == set(WRONG), "\n".join(
        f"{one['range']['start']['line'] + 1}: {one['message']}" for one in errors
    )
