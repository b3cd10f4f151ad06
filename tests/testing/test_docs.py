"""The examples of docs/testing.md form a small project, and its tests pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing.projects import WITH_ASYNCIO, run

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.process
@pytest.mark.long
def test_the_examples_run(project: Path) -> None:
    files: dict[str, str] = {}
    for name, text in EXAMPLE.findall(PAGE.read_text(encoding="utf-8")):
        files[name] = files.get(name, "") + text
    assert files.keys() == {"service.py", "conftest.py", "test_shipping.py"}
    for name, text in files.items():
        (project / name).write_text(text)
    assert "4 passed" in run(project, "-p", "no:anyio", *WITH_ASYNCIO)
