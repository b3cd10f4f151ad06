"""The script of the console: its modules joined into one file, so that the first page needs one request for them instead of
eleven. In a browser a request of a module costs more than to run it.

The modules are plain ES modules, which a browser could also load one by one. No tool makes the bundle: each module becomes a
function that returns what the module exports, and that is called once, after the modules that it imports. Everything else
of a module stays as it is written, line by line.

Only what the modules use is understood: `import {…} from "…"`, `import Name from "…"` and `export` of declarations, at the
beginning of a line, and `export {…}`. Anything else raises `BundleError`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import (?:\{([^}]*)\}|(\w+)) from "(\.{1,2}/[\w./]+)";$', re.MULTILINE)
_DEFAULT = re.compile(r"^export default function (\w+)", re.MULTILINE)
_DECLARATION = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.MULTILINE)
_LIST = re.compile(r"(?:^|(?<=[;}]))export ?\{([^}]*)\};?$", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b|;export\b|^(?!\s*/?\*).*\bimport(?:\(|\.meta\b)", re.MULTILINE)
_RENAMED = re.compile(r"\s+as\s+")


class BundleError(ValueError):
    """A module can't be bundled."""


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """Return one script that does what the module `entry` does, with all that it imports.

    Args:
        modules: the texts of modules by their paths. Those that nothing imports are left out.
        entry: the path of the module that the page would load.

    Raises:
        BundleError: a module is missing, imports itself through others, or has an import or export of another form.
    """
    order: list[str] = []
    _visit(modules, entry, (), order)
    return "".join(_function(path, modules[path]) for path in order)


def _visit(modules: Mapping[str, str], path: str, above: tuple[str, ...], order: list[str]) -> None:
    """Append a module after those that it imports."""
    if path in order:
        return
    if path in above:
        raise BundleError(f"The module {path} imports itself, through {' and '.join(above)}.")
    if path not in modules:
        raise BundleError(f"There is no module {path}, which {above[-1] if above else 'the page'} imports.")
    for found in _IMPORT.finditer(modules[path]):
        _visit(modules, _target(path, found[3]), (*above, path), order)
    order.append(path)


def _target(path: str, specifier: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), specifier))


def _variable(path: str) -> str:
    """The variable that holds what a module exports."""
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))


def _pairs(names: str) -> list[tuple[str, str]]:
    """The names of a list of imports or exports, each with what it is called on the other side of `as`."""
    found = [_RENAMED.split(name.strip()) for name in names.split(",") if name.strip()]
    return [(one[0], one[-1]) for one in found]


def _function(path: str, text: str) -> str:
    """A module as a function that is called immediately. The parentheses before it make engines compile it immediately,
    too."""
    exported: list[tuple[str, str]] = []

    def imported(found: re.Match[str]) -> str:
        pairs = [("default", found[2])] if found[2] else _pairs(found[1])
        names = ", ".join(f"{theirs}: {ours}" for theirs, ours in pairs)
        return f"const {{ {names} }} = {_variable(_target(path, found[3]))};"

    def default(found: re.Match[str]) -> str:
        exported.append((found[1], "default"))
        return f"function {found[1]}"

    def declared(found: re.Match[str]) -> str:
        exported.append((found[2], found[2]))
        return f"{found[1]} {found[2]}"

    def listed(found: re.Match[str]) -> str:
        exported.extend(_pairs(found[1]))
        return ""

    text = _IMPORT.sub(imported, text)
    text = _DEFAULT.sub(default, text)
    text = _DECLARATION.sub(declared, text)
    text = _LIST.sub(listed, text)
    if (left := _LEFT.search(text)) is not None:
        line = text.count("\n", 0, left.start()) + 1
        raise BundleError(
            f"Line {line} of the module {path} has an import or export that can't be bundled: {left[0]!r}."
        )
    given = ", ".join(f"{theirs}: {ours}" for ours, theirs in exported)
    return f"// {path}\nconst {_variable(path)} = (() => {{\n{text}\nreturn {{ {given} }};\n}})();\n"
