"""The lint of docstrings finds names that don't exist, and no others."""

from __future__ import annotations

from tests.docs.docstrings import unknown_names

CODE = '''
class Box:
    """A box.

    Args:
        size: of one side.
        colour: gone.

    Attributes:
        size, lid: as given:
            see below.
        weight: gone.
    """

    lid: int

    def __init__(self, size: int) -> None:
        self.size = size

    async def fill(self, *things: int, **more: int) -> None:
        """Fill it.

        Args:
            *things: what goes in.
            more: the rest.
            thing: gone.

        Raises:
            ValueError: too many.
        """
'''


def test_names_that_do_not_exist_are_found() -> None:
    assert sorted(name for _, name in unknown_names(CODE)) == ["colour", "thing", "weight"]
