"""Docstrings as reStructuredText, which autodoc reads. Ours have code as in Markdown: in backticks, or indented."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from sphinx.application import Sphinx

from headrace.model.settings import settings_of
from headrace.runtime.messages import batch, message
from headrace.runtime.messages.transaction import Transaction

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(?P<suffix>\w)?")
_SECTION = re.compile(r"\s*(?:Args|Attributes|Raises|Returns|Yields|Note|Example)s?:")


def setup(app: Sphinx) -> dict[str, Any]:
    """Set up the extension."""
    for module in (message, batch):  # Sphinx evaluates their annotations, and type checkers alone import this name
        vars(module)["Transaction"] = Transaction
    app.connect("autodoc-process-docstring", _process, priority=100)  # before napoleon, which is at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    described = [*lines, *_settings(obj)]
    lines[:] = with_code_blocks(with_literals("\n".join(described)).splitlines())


def _settings(obj: object) -> list[str]:
    """Return the settings of a spec as arguments. They are described in its annotations, not in its docstring."""
    settings = settings_of(obj) if isinstance(obj, type) and issubclass(obj, msgspec.Struct) else {}
    return ["", "Args:", *(f"    {name}: {one.details}" for name, one in settings.items())] if settings else []


def with_literals(text: str) -> str:
    """Put code between double backticks, also where a letter follows, as in the plural of a name."""
    return _CODE.sub(lambda code: f"``{code[1]}``" + (f"\\ {code['suffix']}" if code["suffix"] else ""), text)


def with_code_blocks(lines: list[str]) -> list[str]:
    """Put the directive of code before each paragraph that is indented by four spaces and follows an empty line.

    The descriptions of arguments, which follow a heading such as `Args:`, are indented, too, and stay.
    """
    found: list[str] = []
    inside, in_section = False, False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if line and not line.startswith(" "):
            inside, in_section = False, bool(_SECTION.match(line))
        if indented and not inside and not in_section and number and not lines[number - 1].strip():
            found += [".. code-block::", ""]
            inside = True
        found.append(line)
    return found
