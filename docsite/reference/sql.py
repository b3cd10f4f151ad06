"""The public functions and views of the database's schema, from the SQL that creates them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from docsite.reference.markdown import code, table
from headrace.store.database import revisions

_FUNCTION = re.compile(
    r"create or replace function headrace\.(?P<name>\w+)\s*\((?P<arguments>.*?)\)\s*returns (?P<returns>.*?)\n(?=language)", re.DOTALL
)  # fmt: skip
_VIEW = re.compile(
    r"create or replace view headrace\.(?P<name>\w+)\b.*?\bas\nselect (?P<columns>.*?)\s+from headrace", re.DOTALL
)
_COMMENT = re.compile(r"comment on (?:function|view) headrace\.(?P<name>\w+)(?:\(.*?\))? is '(?P<text>(?:[^']|'')*)'")
_OUTSIDE_PARENTHESES = re.compile(r",\s*(?![^()]*\))")


class Function(NamedTuple):
    """A function: its name, its arguments with types and defaults, and the type that it returns."""

    name: str
    arguments: list[str]
    returns: str


@cache
def _source() -> str:
    folder = Path(str(revisions.SQL)) / "functions"
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.sql")))


def functions() -> list[Function]:
    """Return all public functions, by name."""
    found = (
        Function(one["name"], [" ".join(argument.split()) for argument in _OUTSIDE_PARENTHESES.split(one["arguments"]) if argument.strip() and not argument.strip().startswith("out ")],
                 " ".join(one["returns"].split()))
        for one in _FUNCTION.finditer(_source())
    )  # fmt: skip
    return sorted(found)


def views() -> dict[str, list[str]]:
    """Return the columns of all public views, by name."""
    return {
        one["name"]: [re.split(r"[ .]", " ".join(column.split()))[-1] for column in _OUTSIDE_PARENTHESES.split(one["columns"])]
        for one in _VIEW.finditer(_source())
    }  # fmt: skip


def comments() -> dict[str, str]:
    """Return the comments of functions and views, by name."""
    return {one["name"]: one["text"].replace("''", "'") for one in _COMMENT.finditer(_source())}


def page() -> str:
    """Return the page."""
    described = comments()
    parts = [
        "# All SQL functions and views\n",
        "The schema `headrace`. Examples, and what is not public, are in [SQL](../sql.md).\n",
        "Give arguments that have a default by name: `p_message_id => 'invoice-17'`.\n",
        "## Functions\n",
    ]
    for one in functions():
        arguments = ",\n".join(f"    {argument}" for argument in one.arguments)
        signature = (
            f"headrace.{one.name}({f'{chr(10)}{arguments}{chr(10)}' if arguments else ''}) returns {one.returns}"
        )
        parts += [f"### headrace.{one.name}\n", f"{described[one.name]}.\n", code(signature)]
    parts += ["## Views\n"]
    rows = [
        (f"`headrace.{name}`", described[name], ", ".join(f"`{column}`" for column in columns))
        for name, columns in views().items()
    ]
    return "\n".join([*parts, table(("view", "description", "columns"), rows)])
