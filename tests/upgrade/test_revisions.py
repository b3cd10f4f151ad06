"""The text of the schema belongs to its revision."""

from __future__ import annotations

from tests.upgrade import lock


def test_the_text_of_the_schema_changes_only_with_its_revision() -> None:
    assert lock.read() == lock.actual(), (
        "The SQL of the schema is not that of its revision. If the newest revision was released, add the next file to"
        " store/sql/migrations/, which may consist of a comment if only functions change. A function whose arguments, result or"
        " meaning changes gets a new name, and the old one moves to store/sql/retired/. Then run: make revisions"
    )
