"""Which functions may be a transform, and how transforms are found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.model.errors import ConfigurationError, InvalidData
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.rules.transforms import load, transform, transformed

MODULE = """
from headrace.sources.postgres.rules.transforms import transform

@transform
def clean(message):
    return message["record"]

def plain(message):
    return message

class Anything:
    __headrace_transform__ = True
    def __getattr__(self, name):
        return True

pretender = Anything()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "shop_capture.py").write_text(MODULE)
    (tmp_path / "broken_capture.py").write_text("raise RuntimeError('no luck')")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shop_capture"
    for name in ("shop_capture", "broken_capture"):
        sys.modules.pop(name, None)


def test_a_decorated_function_is_found_by_its_name(module: str) -> None:
    assert load(f"{module}:clean")({"record": 5}) == 5


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{}:plain", "Decorate the function with @headrace.transform"),
        ("{}:pretender", "is not a transform"),
        ("{}:nope", "has no nope"),
        ("{}_nope:clean", "can't be imported"),
        ("broken_capture:clean", "no luck"),
        ("os:system", "is not a transform"),
        ("{}", "Write module:name"),
        ("{}:", "Write module:name"),
        (":clean", "Write module:name"),
        ("{}:clean.deeper", "Write module:name"),
        ("../{}:clean", "Write module:name"),
    ],
)
def test_an_invalid_transform_stops_the_source_with_a_sentence(module: str, name: str, expected: str) -> None:
    with pytest.raises(SourceStopped, match=expected) as stopped:
        load(name.format(module))
    assert "\n" not in str(stopped.value)


async def asynchronous(message: Any) -> Any:
    return message


def generator(message: Any) -> Any:
    yield message


async def both(message: Any) -> Any:
    yield message


@pytest.mark.parametrize("function", [asynchronous, generator, both, "text", print, int])
def test_only_a_plain_function_can_be_decorated(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="transform"):
        transform(function)


def test_the_decorated_function_is_the_function_itself() -> None:
    def twice(message: dict[str, Any]) -> Any:
        return [message, message]

    assert transform(twice) is twice


@pytest.mark.parametrize(
    "number", ["1", "-0.0", "1.5", "1e400", "0.1", "0.10000000000000000001", "12345678901234567890123", "1E-400"]
)
def test_numbers_pass_unchanged_in_value(number: str) -> None:
    from decimal import Decimal

    made = transformed(lambda message: message["a"], b'{"a":%b}' % number.encode())
    assert made is not None
    assert Decimal(made.decode()) == Decimal(number)


def test_a_coroutine_that_comes_back_is_refused_and_closed() -> None:
    with pytest.raises(InvalidData, match="coroutine"):
        transformed(lambda message: asynchronous(message), b"{}")
