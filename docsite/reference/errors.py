"""All errors: exceptions of Python, codes of the HTTP API, and exit codes of commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from docsite.reference.markdown import code, plain, table
from docsite.tables import codes_table
from headrace.cli.exit_codes import DESCRIPTION as EXIT_CODES
from headrace.model.errors import ERROR_CODES, HeadraceError


def page() -> str:
    """Return the page."""
    codes = {one.kind: name for name, one in ERROR_CODES.items() if one.kind is not None}
    rows = [
        (f"`{kind.__name__}`", _first_paragraph(kind), ", ".join(_bases(kind)), f"`{codes[kind]}`" if kind in codes else "", f"{kind.exit_code}")
        for kind in exceptions()
    ]  # fmt: skip
    return "\n".join(
        [
            "# All errors\n",
            "## Exceptions\n",
            "All are in `headrace.model.errors`, those that you are likely to catch also in `headrace`. An exception"
            " without a code has that of its class above.\n",
            table(("exception", "description", "is a", "HTTP code", "exit code"), rows),
            "## HTTP codes\n",
            "The field `code` of an error, see [the HTTP API](../http.md#errors).\n",
            codes_table(),
            "## Exit codes\n",
            code(EXIT_CODES),
        ]
    )


def exceptions() -> list[type[HeadraceError]]:
    """Return all exceptions of the core, each after those that it is a kind of."""
    return list(dict.fromkeys(_below(HeadraceError)))


def _below(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield kind
    for one in sorted(kind.__subclasses__(), key=lambda one: one.__name__):
        if one.__module__ == HeadraceError.__module__:
            yield from _below(one)


def _bases(kind: type[HeadraceError]) -> list[str]:
    return [f"`{base.__name__}`" for base in kind.__bases__]


def _first_paragraph(kind: type[HeadraceError]) -> str:
    return plain(inspect.getdoc(kind) or "").partition("\n\n")[0]
