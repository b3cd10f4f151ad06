"""The versions of dependencies that pyproject.toml allows."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.lowest import PROJECT, lowest
from tests.versions.python import requirements


@pytest.fixture
def document() -> dict[str, Any]:
    return tomllib.loads(PROJECT.read_text(encoding="utf-8"))


def test_every_dependency_has_one_lower_bound(document: dict[str, Any]) -> None:
    pins = [Requirement(text) for text in lowest(requirements(document, document["dependency-groups"]))]
    assert {"uvicorn", "litestar", "asyncpg", "pyspark", "mypy"} <= {pin.name for pin in pins}
    assert len({pin.name for pin in pins}) == len(pins)


@pytest.mark.parametrize("texts", [["a"], ["a<3"], ["a>=1", "a>=2"]])
def test_a_dependency_without_one_is_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="lower bound"):
        lowest(texts)


def test_a_part_that_is_not_public_is_bounded_above(document: dict[str, Any]) -> None:
    (uvicorn,) = (
        Requirement(one) for one in document["project"]["optional-dependencies"]["server"] if one.startswith("uvicorn")
    )
    assert [bound.operator for bound in uvicorn.specifier if bound.operator.startswith("<")] == ["<"]
