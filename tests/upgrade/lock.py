"""Writes the file of digests, which says what each revision of the schema consists of: `make revisions`."""

from __future__ import annotations

from pathlib import Path

from headrace.store.database import revisions

ROOT = Path(__file__).parents[2]
FILE = ROOT / "framework" / "headrace" / "store" / "sql" / "revisions.lock"
HEADER = """\
# The SHA-256 of each revision's migration, and of the functions that it was released with.
# `make revisions` writes this file. The lines of released revisions never change.
"""


def read() -> dict[int, tuple[str, str]]:
    """The digests of the migration and of the functions, by revision."""
    if not FILE.exists():
        return {}
    lines = [line.split() for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {int(number): (migration, functions) for number, migration, functions in lines}


def actual() -> dict[int, tuple[str, str]]:
    """The expected content of the file: its digests of the functions of older revisions, and the current ones."""
    before, newest = read(), revisions.newest_revision()
    current = revisions.digest(revisions.functions())
    return {
        one.version: (
            revisions.digest(one.sql),
            current if one.version == newest else before[one.version][1],
        )
        for one in revisions.migrations()
    }


def main() -> None:
    """Write the file."""
    lines = [f"{number} {migration} {functions}\n" for number, (migration, functions) in actual().items()]
    FILE.write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
