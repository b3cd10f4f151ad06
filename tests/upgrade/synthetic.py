"""Packages of Headrace with revisions that tests make up: copies of a package, each with one revision more."""

from __future__ import annotations

import shutil
from pathlib import Path

COLUMN = """\
-- A column, and functions of which only the text differs.
--
-- Locks: headrace_internal.consumers (access exclusive)

alter table headrace_internal.consumers add column note_{revision} text;
"""

FEATURE = """
insert into headrace_internal.features (name, needs) values ('made_up_{revision}', {revision});
"""


def next_revision(package: Path, target: Path, *, renames: bool = False, feature: bool = False) -> Path:
    """Copy a package to `target`, and add a revision. Returns `target`.

    Args:
        package: a directory with the package `headrace`, as for `PYTHONPATH`.
        renames: whether the function `delete_heartbeat` gets another signature, and so a new name. The old one is
            retired.
        feature: whether it has a feature that older processes can't bear.
    """
    shutil.copytree(package / "headrace", target / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    store = target / "headrace" / "store"
    sql = store / "sql"
    revision = 1 + max(int(path.name[:4]) for path in (sql / "migrations").glob("*.sql"))
    text = COLUMN + (FEATURE if feature else "")
    (sql / "migrations" / f"{revision:04}_made_up.sql").write_text(text.format(revision=revision), encoding="utf-8")
    workers = sql / "functions" / "catalog" / "workers.sql"
    functions = workers.read_text(encoding="utf-8")
    if renames:
        start = functions.index("-- Delete the heartbeat of a process that ends cleanly")
        old = functions[start : functions.index("-- Return the processes with a heartbeat")]
        head = "create or replace function headrace_internal.delete_heartbeat"
        new = old.replace(f"{head}(p_id uuid)", f"-- Granted: any\n{head}_2(p_id uuid, p_reason text)")
        assert new != old
        functions = functions.replace(old, new)
        (sql / "retired" / f"before_{revision}.sql").write_text(old, encoding="utf-8")
        calls = store / "catalog" / "workers.py"
        python = calls.read_text(encoding="utf-8")
        called = python.replace(
            "headrace_internal.delete_heartbeat($1)", "headrace_internal.delete_heartbeat_2($1, 'ended')"
        )
        assert called != python
        calls.write_text(called, encoding="utf-8")
    workers.write_text(f"{functions}\n-- Revision {revision}.\n", encoding="utf-8")
    return target


def three_more(package: Path, directory: Path) -> list[Path]:
    """Three packages, each with one revision more than the one before."""
    first = next_revision(package, directory / "first")
    second = next_revision(first, directory / "second", renames=True)
    return [first, second, next_revision(second, directory / "third", feature=True)]
