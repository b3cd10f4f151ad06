"""Settings are described once. The decorators and the documentation agree with the description."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from docsite.tables import DOCS, TABLES, with_table
from headrace import App
from headrace.model.push import Push
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec, StreamSpec, parsed
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec

DECORATORS: list[tuple[Callable[..., Any], type[msgspec.Struct], set[str]]] = [
    (App.stream, StreamSpec, {"name"}),
    (App.consumer, ConsumerSpec, {"stream", "name", "max_waiting", "push"}),  # the last two are only for HTTP
    (App.capture, PostgresSpec, {"stream", "name"}),
]


@pytest.mark.parametrize(("document", "wanted"), TABLES)
def test_the_table_in_the_documentation_is_that_of_the_code(document: str, wanted: str) -> None:
    assert wanted in (DOCS / document).read_text(encoding="utf-8"), "run make tables"


@pytest.mark.parametrize(("document", "wanted"), TABLES)
def test_make_tables_replaces_the_table_of_older_settings(document: str, wanted: str) -> None:
    page = (DOCS / document).read_text(encoding="utf-8")
    *rows, last = wanted.splitlines(keepends=True)
    assert with_table(page.replace(wanted, "".join([*rows, "| `gone` | | |\n"])), wanted) == page, last


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
