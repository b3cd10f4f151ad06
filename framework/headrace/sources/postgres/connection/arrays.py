"""Arrays as parameters of queries, in Postgres's text format."""

from __future__ import annotations

from collections.abc import Iterable


def oid_array(oids: Iterable[int | str]) -> str:
    """Return an array of oids."""
    return "{" + ",".join(map(str, oids)) + "}"


def text_array(values: Iterable[str]) -> str:
    """Return an array of texts."""
    return "{" + ",".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "}"
