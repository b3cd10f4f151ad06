"""Names in docstrings that don't exist: `make lint` compares `Args` and `Attributes` with the code.

A function's arguments are those of its signature, and a class's are those of its `__init__`. An attribute is a field, a
method, or what a method assigns to `self`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

FOLDERS = ("framework/headrace", "spark/headrace_spark")

_ENTRY = re.compile(r"( +)(\*{0,2}\w+(?:, \*{0,2}\w+)*):(?: |$)")


Keywords = Mapping[str, set[str]]
"""The fields of classes by the names of the classes, for arguments that are `**options: Unpack[…]` of one."""


def unknown_names(code: str, keywords: Keywords = MappingProxyType({})) -> Iterator[tuple[int, str]]:
    """The names that docstrings of a module describe and that don't exist, each with its line."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _missing(node, "Args", _arguments(node, keywords))
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    yield from _missing(node, "Args", _arguments(method, keywords))
            yield from _missing(node, "Attributes", _attributes(node))


def _missing(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, section: str, known: set[str]
) -> Iterator[tuple[int, str]]:
    return ((node.lineno, name) for name in _described(ast.get_docstring(node) or "", section) if name not in known)


def _described(docstring: str, section: str) -> Iterator[str]:
    """The names at the beginning of the entries of a section. Lines that are indented further belong to an entry."""
    _, _, text = docstring.partition(f"{section}:\n")
    for line in text.splitlines():
        if line and not line.startswith(" "):
            return
        if (entry := _ENTRY.match(line)) is not None and len(entry[1]) == 4:
            yield from (name.lstrip("*") for name in entry[2].split(", "))


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef, keywords: Keywords) -> set[str]:
    found = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    match function.args.kwarg:
        case ast.arg(annotation=ast.Subscript(value=ast.Name(id="Unpack"), slice=ast.Name(id=name))):
            found |= keywords.get(name, set())
    return found


def _keywords(codes: Iterable[str]) -> dict[str, set[str]]:
    """The fields of all classes of these modules, with those of their first bases."""
    classes = {
        node.name: node
        for code in codes
        for node in ast.parse(code).body
        if isinstance(node, ast.ClassDef) and node.bases
    }

    def fields(node: ast.ClassDef | None) -> set[str]:
        if node is None:
            return set()
        own = {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        base = node.bases[0]
        return own | (fields(classes.get(base.id)) if isinstance(base, ast.Name) and base.id != node.name else set())

    return {name: fields(node) for name, node in classes.items()}


def _attributes(node: ast.ClassDef) -> set[str]:
    found = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
            found.add(part.attr)
        elif isinstance(part, ast.AnnAssign | ast.Assign):
            targets = [part.target] if isinstance(part, ast.AnnAssign) else part.targets
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def main() -> int:
    """Print what is wrong. Returns the exit code."""
    codes = {
        path: path.read_text(encoding="utf-8") for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))
    }
    keywords = _keywords(codes.values())
    wrong = [
        f"{path}:{line}: The docstring names {name!r}, which doesn't exist."
        for path, code in codes.items()
        for line, name in unknown_names(code, keywords)
    ]
    print("\n".join(wrong) or "Docstrings name what exists.")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
