"""The text of the schema belongs to its revision."""

from __future__ import annotations

from pathlib import Path

from headrace.store.database import revisions
from tests.upgrade import lock


def test_the_text_of_the_schema_changes_only_with_its_revision() -> None:
    assert lock.read() == lock.actual(), (
        "The SQL of the schema is not that of its revision. If the newest revision was released, add the next file to"
        " store/sql/migrations/, which may consist of a comment if only functions change. A function whose arguments, result or"
        " meaning changes gets a new name, and the old one moves to store/sql/retired/. Then run: make revisions"
    )


def test_every_file_of_functions_has_its_place_in_the_order() -> None:
    folder = Path(str(revisions.SQL / "functions"))
    ordered = (folder / "order.txt").read_text(encoding="utf-8").split()
    assert sorted([*ordered, *revisions.LAST]) == sorted(
        str(path.relative_to(folder)).removesuffix(".sql") for path in folder.rglob("*.sql")
    )
