"""The tables in `docs/` that descriptions in the code make: settings, options, parameters and codes. `make tables` writes
them, and the reference pages have them, too.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import msgspec

from headrace.app.settings import SETTINGS
from headrace.cli.options.server import ServerBehavior, ServerLimits
from headrace.model.database_url.parameters import ANY, AS_PSQL, PARAMETERS, Parameter
from headrace.model.errors import ERROR_CODES
from headrace.model.push import Push
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec

DOCS = Path(__file__).parents[1] / "docs"


def table(*rows: list[str]) -> str:
    """Return a table with a heading and rows of Markdown."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("|  |", "| |")


def settings_table(spec: type[msgspec.Struct]) -> str:
    """Return the settings of a spec, under the names of the HTTP API."""
    settings = [one for one in settings_of(spec).values() if not (one.fixed and one.required)]
    aliases = any(one.names[1:] for one in settings)
    rows = [["setting", "default", *(["also as"] if aliases else []), "description"]]
    for one in settings:
        also = ", ".join(f"`{name}`" for name in one.names[1:])
        rows.append([f"`{one.names[0]}`", one.default_text, *([also] if aliases else []), one.details])
    return table(*rows)


def older_names_table(spec: type[msgspec.Struct]) -> str:
    """Return the older names of a spec's settings."""
    settings = [(one, one.older) for one in settings_of(spec).values() if one.older is not None]
    rows = [[f"`{older.name}`", f"`{one.names[0]}`", older.description] for one, older in settings]
    return table(["older name", "setting", "description"], *rows)


def process_settings_table() -> str:
    """Return the settings of processes."""
    rows = [["`[tool.headrace]`", "environment", "argument", "meaning", "default"]]
    for setting in SETTINGS:
        places = [setting.argument and f"`App({setting.argument}=…)`", setting.option and f"`{setting.option}`"]
        name = f"`{setting.name}`" if setting.in_project else ""
        default = setting.default_text or f"`{setting.default}`"
        rows.append([name, f"`{setting.variable}`", ", ".join(filter(None, places)), setting.description, default])
    return table(*rows)


def codes_table() -> str:
    """Return all codes of errors."""
    rows = [[str(code.status), f"`{name}`", code.meaning] for name, code in ERROR_CODES.items()]
    return table(["status", "code", "description"], *rows)


def parameters_table() -> str:
    """Return the parameters of database URLs. Neighbours with the same effect share a row."""
    rows = [["parameter", "the store (asyncpg)", "captures and Spark (libpq)"]]
    for cells, group in groupby(PARAMETERS, lambda parameter: [_effect(parameter), parameter.libpq]):
        rows.append([", ".join(f"`{parameter.name}`" for parameter in group), *cells])
    return table(*rows)


def _effect(parameter: Parameter) -> str:
    if not parameter.refused:
        return parameter.effect
    if parameter.refused == ANY:
        return f"refused. {parameter.instead}"
    values = " and ".join(f"`{value}`" for value in parameter.refused)
    effect = "ignored" if parameter.effect == AS_PSQL else parameter.effect
    return f"{effect}, and {values} refused. {parameter.instead}"


TABLES = [
    ("streams.md", settings_table(StreamSpec)),
    ("http.md", settings_table(ConsumerSpec)),
    ("http.md", older_names_table(StreamSpec)),
    ("http.md", codes_table()),
    ("push.md", settings_table(Push)),
    ("webhooks.md", settings_table(WebhookSpec)),
    ("capture.md", settings_table(PostgresSpec)),
    ("settings.md", process_settings_table()),
    ("server.md", ServerBehavior.table()),
    ("server.md", ServerLimits.table()),
    ("database-url.md", parameters_table()),
]
"""The pages, and the tables that they have."""


def with_table(page: str, wanted: str) -> str:
    """Return a page with a table in place of the older one, which has the same heading and some of its rows. Raises
    `ValueError` if there is none.
    """
    head, _, *rows = wanted.splitlines()
    names = {_name(row) for row in rows}
    for found in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        old_head, _, *old_rows = found.splitlines()
        if old_head == head and names & set(map(_name, old_rows)):
            return page.replace(found, wanted)
    raise ValueError(f"The page has no table with the heading {head}")


def _name(row: str) -> str:
    """Return the first cell with a name in backticks."""
    return next(cell for cell in row.split("|") if "`" in cell)


if __name__ == "__main__":
    for document, wanted in TABLES:
        path = DOCS / document
        path.write_text(with_table(path.read_text(encoding="utf-8"), wanted), encoding="utf-8")
