"""Revisions that tests add to those of this code."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.store.database import revisions


def add_revision(
    monkeypatch: pytest.MonkeyPatch, sql: str, *, functions: str = "", name: str = "more", **fields: Any
) -> int:
    """From now on, the code of this process knows one more revision. Returns its number.

    Args:
        sql: the migration.
        functions: statements that are added to the text of the functions.
        fields: further fields of the `Migration`.
    """
    known, text = revisions.migrations(), revisions.functions()
    version = known[-1].version + 1
    later = [*known, revisions.Migration(version, name, sql, **fields)]
    monkeypatch.setattr(revisions, "migrations", lambda: later)
    monkeypatch.setattr(revisions, "functions", lambda: f"{text}\n{functions}")
    return version
