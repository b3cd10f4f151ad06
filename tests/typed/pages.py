"""The examples of a how-to page as one module, which a test imports and runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
_EXAMPLE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(page: str, language: str = "python") -> list[str]:
    """The examples of a page in one language, in their order."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [example for found, example in _EXAMPLE.findall(text) if found == language]


def page_file(page: str, folder: Path) -> Path:
    """Write the Python examples of a page into a file."""
    file = folder / f"{page.replace('-', '_')}_page.py"
    file.write_text("\n\n".join(examples(page)))
    return file


def page_module(page: str, folder: Path) -> ModuleType:
    """Import the Python examples of a page as a module."""
    file = page_file(page, folder)
    found = importlib.util.spec_from_file_location(file.stem, file)
    assert found is not None
    assert found.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
