"""What `headrace run` asks of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headrace.cli.processes.garbage import YOUNG, spare_what_exists


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.parametrize(("given", "found"), [(700, YOUNG), (YOUNG, YOUNG), (100_000, 100_000), (0, 0)])
def test_a_threshold_is_raised_and_nothing_else(given: int, found: int) -> None:
    gc.set_threshold(given, 11, 12)
    older = gc.get_threshold()[1:]
    spare_what_exists()
    assert gc.get_threshold() == (found, *older)


def test_older_generations_have_the_thresholds_that_are_given() -> None:
    gc.set_threshold(700, 11, 12)
    spare_what_exists(50_000, 20, 50)
    assert gc.get_threshold()[:2] == (50_000, 20)


def test_what_exists_is_left_alone() -> None:
    existing = [[]]  # type: ignore[var-annotated]
    spare_what_exists()
    new: list[list[int]] = [[]]
    left = {id(one) for one in gc.get_objects()}
    assert id(existing) not in left
    assert id(new) in left
