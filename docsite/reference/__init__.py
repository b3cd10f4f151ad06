"""Pages of the reference that are generated from the code, by the names of their files.

Each module has a function `page`, which returns the text of a page as Markdown. They need neither a database nor a
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from docsite.reference import commands, errors, http, metrics, operations, settings, sql


class Generated(NamedTuple):
    """A generated page.

    Attributes:
        title: its title in the table of contents.
        description: what it has, in a few words.
        page: returns its text.
    """

    title: str
    description: str
    page: Callable[[], str]


GENERATED: Mapping[str, Generated] = {
    "reference/settings.md": Generated("All settings", "of processes, servers, streams, consumers and sources", settings.page),
    "reference/operations.md": Generated("All operations", "with their method, route, command and scope", operations.page),
    "reference/cli.md": Generated("All commands", "with their arguments and options", commands.page),
    "reference/http.md": Generated("All HTTP routes", "with their parameters, bodies and responses", http.page),
    "reference/http-types.md": Generated("All HTTP types", "of requests and responses", http.types_page),
    "reference/sql.md": Generated("All SQL functions and views", "with their arguments and columns", sql.page),
    "reference/errors.md": Generated("All errors", "as exceptions, HTTP codes and exit codes", errors.page),
    "reference/metrics.md": Generated("All metrics", "of OpenTelemetry and of the server's /metrics", metrics.page),
}  # fmt: skip
