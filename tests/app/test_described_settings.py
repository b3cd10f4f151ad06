"""Settings are described once. The decorators and the documentation agree with the description."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace import App
from headrace.model.push import Push
from headrace.model.settings import older_names_table, settings_of, table
from headrace.model.specs import ConsumerSpec, StreamSpec, parsed
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec

DOCS = Path(__file__).parents[2] / "docs"

DECORATORS: list[tuple[Callable[..., Any], type[msgspec.Struct], set[str]]] = [
    (App.stream, StreamSpec, {"name"}),
    (App.consumer, ConsumerSpec, {"stream", "name", "max_waiting", "push"}),  # the last two are only for HTTP
    (App.capture, PostgresSpec, {"stream", "name"}),
]


@pytest.mark.parametrize(
    ("document", "spec"),
    [
        ("streams.md", StreamSpec),
        ("http.md", ConsumerSpec),
        ("push.md", Push),
        ("webhooks.md", WebhookSpec),
        ("capture.md", PostgresSpec),
    ],
)
def test_the_table_in_the_documentation_is_that_of_the_code(document: str, spec: type[msgspec.Struct]) -> None:
    text = (DOCS / document).read_text(encoding="utf-8")
    assert table(spec) in text, f"write table({spec.__name__}) into docs/{document}"


def test_the_documentation_has_the_older_names_of_settings() -> None:
    text = (DOCS / "http.md").read_text(encoding="utf-8")
    assert older_names_table(StreamSpec) in text, "write older_names_table(StreamSpec) into docs/http.md"


@pytest.mark.parametrize("spec", [StreamSpec, ConsumerSpec, Push, WebhookSpec, PostgresSpec])
def test_every_field_of_a_spec_is_a_described_setting(spec: type[msgspec.Struct]) -> None:
    assert tuple(settings_of(spec)) == spec.__struct_fields__


@pytest.mark.parametrize(("decorator", "spec", "besides"), DECORATORS)
def test_a_decorator_takes_every_setting_with_its_default_and_its_description(
    decorator: Callable[..., Any], spec: type[msgspec.Struct], besides: set[str]
) -> None:
    parameters = inspect.signature(decorator).parameters
    explained = " ".join((inspect.getdoc(decorator) or "").split()).lower()
    for setting in settings_of(spec).values():
        if setting.name in besides:
            continue
        name = "filter" if setting.name == "filters" else setting.name
        assert f"{name}: {setting.description.lower()}" in explained, f"describe {name} as the setting is described"
        default = parameters[name].default
        if not setting.required:
            given = parsed(spec, {setting.name: default})[setting.name]
            assert given == setting.default or (given is None and not setting.default), name
