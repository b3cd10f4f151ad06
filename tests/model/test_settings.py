"""The description of a setting checks values, and says in words what they must be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from docsite.tables import settings_table
from headrace.model.errors import ConfigurationError
from headrace.model.settings import Setting, check, settings_of


class Spec(msgspec.Struct, kw_only=True):
    name: Annotated[str, Setting("The name.", fixed=True)]
    wait: Annotated[float, Setting("The wait.", "seconds", (0.1, 300), names=("wait_ms", "wait"))] = 90.0
    size: Annotated[int | None, Setting("The size.", "bytes", (1, 2**60), otherwise="no limit")] = None
    tries: Annotated[int, Setting("The attempts.", limits=(1, 1000), unlimited=-1)] = 10
    speed: Annotated[float, Setting("The speed.", "messages per second", (0, 1000), exclusive=True)] = 1.0
    mode: Annotated[Literal["a", "b", "c"], Setting("The mode.")] = "a"
    ready: Annotated[bool, Setting("Whether it is ready.")] = False


@pytest.mark.parametrize(
    ("setting", "value", "requirement"),
    [
        ("wait", 0.01, "from 0.1 seconds to 5 minutes"),
        ("wait", float("nan"), "from 0.1 seconds to 5 minutes"),
        ("wait", None, "from 0.1 seconds to 5 minutes"),
        ("wait", "1", "from 0.1 seconds to 5 minutes"),
        ("size", 0, "at least 1 byte"),
        ("size", 1.5, "at least 1 byte"),
        ("tries", 0, "from 1 to 1,000, or -1 for no limit"),
        ("tries", True, "from 1 to 1,000, or -1 for no limit"),
        ("speed", 0, "more than 0 and at most 1,000 messages per second"),
        ("mode", "d", "'a', 'b' or 'c'"),
        ("ready", 1, "true or false"),
    ],
)
def test_an_invalid_value_is_refused_with_what_it_must_be(setting: str, value: Any, requirement: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check(Spec(**{"name": "x", setting: value}), "the thing 'x'")
    assert str(refused.value) == f"`{setting}` of the thing 'x' must be {requirement}, not {value!r}."


def test_limits_and_the_words_for_none_and_no_limit_are_valid() -> None:
    check(Spec(name="x", wait=300, size=None, tries=-1, speed=1000, mode="c", ready=True), "the thing 'x'")


def test_the_table_has_the_current_names_the_defaults_and_the_limits() -> None:
    assert settings_table(Spec).splitlines()[:4] == [
        "| setting | default | also as | description |",
        "| --- | --- | --- | --- |",
        "| `wait_ms` | 90 seconds | `wait` | The wait. From 0.1 seconds to 5 minutes. |",
        "| `size` | no limit | | The size. At least 1 byte. |",
    ]
    assert settings_of(Spec)["size"].optional
    assert settings_of(Spec)["name"].required
